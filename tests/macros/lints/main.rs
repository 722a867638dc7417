//! Compares the lints of annotated functions with the lints of the same functions without the attribute.
//!
//! `shapes` is a crate of such functions. For each edition, clippy checks the crate with and without `--cfg annotated`.
//! First all lints of rustc and clippy warn. Both crates must then have the same lints on the same lines. Then all lints
//! are forbidden. The annotated crate must then contain no `allow` that the plain crate does not contain. `exceptions.rs`
//! lists the differences that remain. A difference without an exception fails the test, and so does an exception without
//! a difference.
//!
//! `cargo test -p lock-lint-tests` runs the comparison, in about 20 seconds. A new function needs a comment `// shape: NAME`
//! above its attribute; the lines after the comment belong to the shape.

mod clippy;
mod exceptions;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display, Write as _},
    fs,
    io::{self, Write as _},
};

use clippy::{Level, Place};
use exceptions::{EXCEPTIONS, Exception};

/// The version of rustc for which the exceptions are listed. Each version adds, removes and mends lints. With another
/// version, the test therefore prints the differences, and does not fail.
const VERSION: &str = "1.95";

#[test]
fn edition_2018() {
    check("2018");
}

#[test]
fn edition_2021() {
    check("2021");
}

#[test]
fn edition_2024() {
    check("2024");
}

/// A coverage report leaves out a line without a region, so that it shows the line neither as run nor as missed.
#[test]
fn coverage_reports_have_the_lines_of_annotated_functions() {
    let [plain, annotated] = [false, true].map(clippy::covered_lines);
    assert!(
        plain.len() > 500,
        "the compiler lists {} lines",
        plain.len()
    );
    let mut missing = Vec::new();
    for (file, line) in plain.difference(&annotated) {
        let text = fs::read_to_string(clippy::shapes().join(file)).unwrap();
        let text = text.lines().nth(*line as usize - 1).unwrap();
        if !text.contains("#[cfg(not(annotated))]") {
            missing.push(format!("{file}:{line}: {text}"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// A lint that only one of the two crates has at a place.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    shape: String,
    side: Side,
    lint: String,
    place: Place,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// Only the annotated function has the lint.
    Extra,
    /// Only the plain function has the lint.
    Missing,
}

use Side::{Extra, Missing};

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shape,
            side,
            lint,
            place: (file, line),
            message,
        } = self;
        write!(
            f,
            "{side:?} {lint} of `{shape}` at shapes/{file}:{line}: {message}"
        )
    }
}

#[track_caller]
fn check(edition: &str) {
    let differences = differences(edition);
    let mut report = String::new();
    for difference in &differences {
        if !EXCEPTIONS
            .iter()
            .any(|exception| exception.covers(edition, difference))
        {
            writeln!(report, "{difference}").unwrap();
        }
    }
    for exception in EXCEPTIONS {
        for unused in exception.unused(edition, &differences) {
            writeln!(report, "an exception without a difference: {unused}").unwrap();
        }
    }
    let version = clippy::version();
    let same = version
        .strip_prefix(VERSION)
        .is_some_and(|rest| rest.starts_with('.'));
    if !report.is_empty() && !same {
        let note = format!(
            "the exceptions are listed for rustc {VERSION}; with rustc {version} in edition {edition}:\n{report}"
        );
        // Standard output is hidden if the test succeeds.
        io::stderr().write_all(note.as_bytes()).unwrap();
        return;
    }
    assert!(report.is_empty(), "edition {edition}:\n{report}");
}

fn differences(edition: &str) -> BTreeSet<Difference> {
    let shapes = Shapes::read();
    let mut differences = BTreeSet::new();
    for level in [Level::Warn, Level::Forbid] {
        let [plain, annotated] =
            [false, true].map(|annotated| clippy::check(edition, annotated, level));
        for (side, of, other) in [(Missing, &plain, &annotated), (Extra, &annotated, &plain)] {
            for ((lint, place), message) in of {
                if !other.contains_key(&(lint.clone(), place.clone())) {
                    differences.insert(Difference {
                        shape: shapes.at(place).to_owned(),
                        side,
                        lint: lint.clone(),
                        place: place.clone(),
                        message: message.clone(),
                    });
                }
            }
        }
    }
    differences
}

/// The names of the shapes by file and by the line of their comment.
struct Shapes(BTreeMap<String, BTreeMap<u64, String>>);

impl Shapes {
    fn read() -> Self {
        let mut shapes = Self(BTreeMap::new());
        for file in fs::read_dir(clippy::shapes()).unwrap() {
            let file = file.unwrap();
            let text = fs::read_to_string(file.path()).unwrap();
            let names = (1..).zip(text.lines());
            let names = names.filter_map(|(line, text)| {
                let name = text.trim_start().strip_prefix("// shape: ")?;
                Some((line, name.to_owned()))
            });
            shapes
                .0
                .insert(file.file_name().into_string().unwrap(), names.collect());
        }
        shapes
    }

    /// Returns the shape to which a line belongs.
    fn at(&self, (file, line): &Place) -> &str {
        let shape = self.0[file].range(..=*line).next_back();
        shape.map_or("none", |(_, name)| name)
    }
}

impl Exception {
    fn covers(&self, edition: &str, difference: &Difference) -> bool {
        self.editions.contains(&edition)
            && self.side == difference.side
            && self.lints.contains(&&*difference.lint)
            && (self.shapes.is_empty() || self.shapes.contains(&&*difference.shape))
    }

    /// Returns the lints and shapes of the exception that have no difference.
    fn unused(&self, edition: &str, differences: &BTreeSet<Difference>) -> Vec<String> {
        if !self.editions.contains(&edition) {
            return Vec::new();
        }
        let covered: Vec<_> = differences
            .iter()
            .filter(|difference| self.covers(edition, difference))
            .collect();
        let unused_lints = self
            .lints
            .iter()
            .filter(|lint| !covered.iter().any(|difference| difference.lint == **lint));
        let unused_shapes = self
            .shapes
            .iter()
            .filter(|shape| !covered.iter().any(|difference| difference.shape == **shape));
        unused_lints
            .chain(unused_shapes)
            .map(|name| format!("{name} ({})", self.reason))
            .collect()
    }
}
