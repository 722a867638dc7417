//! The runbook says what to do about each alert and each error.

use std::{collections::BTreeSet, fs};

fn read(path: &str) -> String {
    fs::read_to_string(support::root().join(path)).expect("a file of this checkout")
}

/// Returns the variants of an enum in a source file.
fn variants(path: &str, name: &str) -> BTreeSet<String> {
    let file = syn::parse_file(&read(path)).expect("Rust");
    let found = file.items.into_iter().find_map(|item| match item {
        syn::Item::Enum(item) if item.ident == name => Some(item.variants),
        _ => None,
    });
    let variants = found.expect("the enum").into_iter();
    variants.map(|variant| variant.ident.to_string()).collect()
}

/// Returns the names in the first column of the table with this heading.
fn rows(page: &str, heading: &str) -> BTreeSet<String> {
    let table = page.split(&format!("\n| `{heading}` |")).nth(1);
    let rows = table.expect("the table").lines().skip(2);
    let rows = rows.take_while(|row| row.starts_with('|'));
    let cells = rows.map(|row| row.split('|').nth(1).expect("a cell"));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned))
        .collect()
}

#[test]
fn the_runbook_covers_each_alert_and_each_error() {
    let page = read("docs/operations/runbook.md");
    let rules = read("docs/operations/prometheus-rules.yml");
    let alerts = rules.lines();
    let alerts: BTreeSet<_> = alerts
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let headings: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    assert_eq!(headings, alerts);
    for (path, name) in [
        ("lock-core/src/error.rs", "LockError"),
        ("lock-runtime/src/connect_error.rs", "ConnectError"),
    ] {
        assert_eq!(rows(&page, name), variants(path, name), "{name}");
    }
}
