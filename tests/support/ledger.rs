//! Checks the ledger of promises, a table in `docs/testing.md`. Each sentence that the ledger quotes must be in a text
//! for users. Each test and each mutant that the ledger names must exist. Each promise must have a row.

use std::{collections::BTreeSet, fs, path::Path};

use crate::root;

/// The files that state the promises to users, and the heading of each file's table of promises. Each row of these
/// tables needs a row in the ledger.
const TABLES: [(&str, &str); 2] = [
    ("README.md", "## What is guaranteed, and what is not"),
    ("docs/promises.md", "# The promises, and where they hold"),
];

struct Row {
    file: String,
    sentence: String,
    tests: Vec<String>,
    mutants: Vec<String>,
}

/// Returns the texts of the cells in one line of a table. An escaped `|` does not end a cell.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|').trim_end_matches('|');
    let line = line.replace("\\|", "\u{0}");
    let cells = line
        .split('|')
        .map(|cell| cell.trim().replace('\u{0}', "\\|"));
    cells.collect()
}

/// Returns the parts of a cell that are between backticks.
fn names(cell: &str) -> Vec<String> {
    let names = cell.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

/// Returns the rows of a table, without its header.
fn rows(table: &str) -> impl Iterator<Item = Vec<String>> {
    let lines = table.lines().filter(|line| line.starts_with('|'));
    lines.skip(2).map(cells)
}

fn ledger() -> Vec<Row> {
    let text = read("docs/testing.md");
    let (_, text) = text
        .split_once("<!-- ledger: begin -->")
        .expect("the ledger begins");
    let (text, _) = text
        .split_once("<!-- ledger: end -->")
        .expect("the ledger ends");
    let rows = rows(text).map(|cells| {
        let [file, sentence, tests, mutants] = &cells[..] else {
            panic!("a row of the ledger has four cells: {cells:?}");
        };
        Row {
            file: names(file).pop().expect("a row names its file"),
            sentence: sentence.clone(),
            tests: names(tests),
            mutants: names(mutants),
        }
    });
    rows.collect()
}

fn read(file: &str) -> String {
    let path = root().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns a text with single spaces between its words, and without the markers of doc comments.
fn words(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"))
            .unwrap_or(line)
    });
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

/// Collects the test functions of all Rust sources below a folder. Each name is preceded by the path of its file.
fn functions(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("the sources can be listed") {
        let path = entry.expect("the sources can be listed").path();
        if path.is_dir() && !path.ends_with("target") {
            functions(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source can be read");
            let place = path.with_extension("");
            let place = place
                .strip_prefix(root())
                .expect("the source is below the root")
                .to_string_lossy();
            let place = place.strip_suffix("/mod").unwrap_or(&place);
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                let function = line.strip_prefix("async ").unwrap_or(line);
                if let Some((name, _)) = function
                    .strip_prefix("fn ")
                    .and_then(|name| name.split_once('('))
                {
                    if is_test {
                        into.insert(format!("{}::{name}", place.replace('/', "::")));
                    }
                    is_test = false;
                } else {
                    is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                }
            }
        }
    }
}

#[test]
fn each_sentence_of_the_ledger_is_one_that_users_read() {
    for Row { file, sentence, .. } in ledger() {
        let text = words(&read(&file));
        assert!(
            text.contains(&words(&sentence)),
            "{file} does not say: {sentence}"
        );
    }
}

#[test]
fn each_test_of_the_ledger_exists() {
    let mut tests = BTreeSet::new();
    for folder in [
        "tests",
        "lock-core",
        "lock-macros",
        "lock-page",
        "lock-runtime",
        "lockctl",
        "tools",
    ] {
        functions(&root().join(folder), &mut tests);
    }
    for row in ledger() {
        assert!(!row.tests.is_empty(), "no test checks: {}", row.sentence);
        for name in row.tests {
            let exists = tests
                .iter()
                .any(|test| test.ends_with(&format!("::{name}")));
            assert!(
                exists,
                "the test {name} is missing; it checks the promise: {}",
                row.sentence
            );
        }
    }
}

#[test]
fn each_mutant_of_the_ledger_exists() {
    for row in ledger() {
        for name in row.mutants {
            let patch = root()
                .join("tools/mutants/patches")
                .join(format!("{name}.patch"));
            assert!(
                patch.is_file(),
                "the mutant {name} is missing; it breaks the promise: {}",
                row.sentence
            );
        }
    }
}

#[test]
fn each_promise_has_a_row() {
    let ledger = ledger();
    for (file, heading) in TABLES {
        let text = read(file);
        let from = text.find(heading).expect("the heading is there");
        let table: Vec<&str> = text[from..]
            .lines()
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'))
            .collect();
        for cells in rows(&table.join("\n")) {
            let promise = words(&cells.join(" | "));
            let mut held = ledger.iter().filter(|row| row.file == file);
            let is_held = held.any(|row| promise.contains(&words(&row.sentence)));
            assert!(is_held, "{file}: no row of the ledger is about: {promise}");
        }
    }
}
