//! The tables as Markdown, and the page that shows them.

use std::{fmt::Write as _, fs, io, path::Path};

/// Between these the page is the benchmark's; the rest is written by hand.
const BEGIN: &str = "<!-- measured: begin -->";
const END: &str = "<!-- measured: end -->";

/// A row for each lock, a cell for each column.
#[derive(Debug)]
pub(crate) struct Grid {
    columns: Vec<&'static str>,
    rows: Vec<(String, Vec<Option<String>>)>,
}

impl Grid {
    pub(crate) fn new(rows: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            columns: Vec::new(),
            rows: rows
                .into_iter()
                .map(|row| (row.into(), Vec::new()))
                .collect(),
        }
    }

    /// Adds a column; a row that has nothing to show gets a dash.
    pub(crate) fn column(
        &mut self,
        title: &'static str,
        mut cell: impl FnMut(&str) -> Option<String>,
    ) {
        self.columns.push(title);
        for (row, cells) in &mut self.rows {
            cells.push(cell(row));
        }
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("| lock | {} |\n", self.columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(self.columns.len()));
        for (row, cells) in &self.rows {
            if cells.iter().any(Option::is_some) {
                let cells = cells.iter().map(|cell| cell.as_deref().unwrap_or("–"));
                let cells: Vec<_> = cells.collect();
                let row = if row.starts_with("ours") {
                    format!("**{row}**")
                } else {
                    row.clone()
                };
                let _ = writeln!(text, "| {row} | {} |", cells.join(" | "));
            }
        }
        text
    }
}

/// Replaces what an earlier run had measured.
pub(crate) fn update(path: &Path, measured: &str) -> io::Result<()> {
    let page = fs::read_to_string(path)?;
    let marks = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let Some((before, after)) = marks else {
        return Err(io::Error::other(format!("{BEGIN} … {END} is missing")));
    };
    fs::write(path, format!("{before}{BEGIN}\n{measured}\n{END}{after}"))
}
