//! Tables of measurements in Markdown, and the pages that show them. A program replaces the text between two markers of
//! a page; the rest of the page is written by hand.

use std::{fmt::Write as _, fs, io, path::Path};

/// A table with one row for each lock.
#[derive(Debug)]
pub struct Grid {
    columns: Vec<String>,
    rows: Vec<(String, Vec<Option<String>>)>,
}

impl Grid {
    /// Creates a table with these rows. `first` is the title of the first column, which contains the names of the rows.
    /// A name that begins with `ours` is set in bold.
    pub fn new(first: &str, rows: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            columns: vec![first.into()],
            rows: rows
                .into_iter()
                .map(|row| (row.into(), Vec::new()))
                .collect(),
        }
    }

    /// Adds a column. `cell` returns the value for a row; a row without a value gets a dash.
    pub fn column(
        &mut self,
        title: impl Into<String>,
        mut cell: impl FnMut(&str) -> Option<String>,
    ) {
        self.columns.push(title.into());
        for (row, cells) in &mut self.rows {
            cells.push(cell(row));
        }
    }

    /// Returns the table without the rows that have no values at all.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("| {} |\n", self.columns.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(self.columns.len()));
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

/// Replaces the text between the two markers of this name, `<!-- name: begin -->` and `<!-- name: end -->`.
///
/// # Errors
/// If the page cannot be read or written, or does not have these markers.
pub fn update(path: &Path, name: &str, measured: &str) -> io::Result<()> {
    let page = fs::read_to_string(path)?;
    let [begin, end] = ["begin", "end"].map(|side| format!("<!-- {name}: {side} -->"));
    let marks = page.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    let Some((before, after)) = marks else {
        return Err(io::Error::other(format!("{begin} … {end} is missing")));
    };
    let measured = measured.trim_end();
    fs::write(path, format!("{before}{begin}\n{measured}\n\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_nothing_to_show_is_left_out() {
        let mut grid = Grid::new("lock", ["ours", "theirs", "nobody's"]);
        grid.column("µs", |row| (row != "nobody's").then(|| "1".into()));
        grid.column("keys", |row| (row == "ours").then(|| "0".into()));
        let table =
            "| lock | µs | keys |\n|---|---|---|\n| **ours** | 1 | 0 |\n| theirs | 1 | – |\n";
        assert_eq!(grid.markdown(), table);
    }

    #[test]
    fn only_what_is_between_the_marks_of_a_name_is_replaced() {
        let path = std::env::temp_dir().join(format!("page-{}.md", uuid::Uuid::new_v4()));
        let page = |a: &str, b: &str| {
            format!(
                "by hand\n<!-- a: begin -->\n{a}<!-- a: end -->\n<!-- b: begin -->\n{b}<!-- b: end -->\nby hand\n"
            )
        };
        fs::write(&path, page("old\n\n", "old\n\n")).expect("the page can be written");
        update(&path, "b", "new\n").expect("the page has the markers");
        update(&path, "b", "newer").expect("the page still has the markers");
        let updated = fs::read_to_string(&path).expect("the page can be read");
        assert_eq!(updated, page("old\n\n", "newer\n\n"));
        let missing = update(&path, "c", "new").expect_err("the page has no such markers");
        assert!(missing.to_string().contains("c: begin"), "{missing}");
        fs::remove_file(&path).expect("the file is there");
    }
}
