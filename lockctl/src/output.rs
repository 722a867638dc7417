//! The three formats of the output: a table for people, one JSON document, and JSON lines.

use std::{
    io::{self, Write},
    time::Duration,
};

use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::exit::Failure;

/// The format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// A table for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON document in each line.
    Jsonl,
}

/// A row of a list.
pub(crate) trait Row: Serialize {
    /// The titles of the columns.
    const TITLES: &'static [&'static str];

    /// Returns the texts of the row's columns.
    fn cells(&self) -> Vec<String>;

    /// Returns the text by which the table's rows are sorted.
    fn order(&self) -> &str;
}

/// The largest number of rows in one table. A longer list becomes several tables, one below the other, so that
/// `lockctl` stores at most this many rows in memory.
const ROWS_PER_TABLE: usize = 1000;

/// A list that is written row by row.
pub(crate) struct List<R> {
    format: Format,
    out: io::BufWriter<io::Stdout>,
    /// The rows of the next table, which are not written yet.
    rows: Vec<R>,
    written: usize,
}

impl<R: Row> List<R> {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            out: io::BufWriter::new(io::stdout()),
            rows: Vec::new(),
            written: 0,
        }
    }

    pub(crate) fn push(&mut self, row: R) -> Result<(), Failure> {
        match self.format {
            Format::Table => {
                self.rows.push(row);
                if self.rows.len() == ROWS_PER_TABLE {
                    self.write_table()?;
                }
            }
            Format::Json => {
                let before = if self.written == 0 { "[\n" } else { ",\n" };
                self.out.write_all(before.as_bytes())?;
                serde_json::to_writer(&mut self.out, &row)?;
                self.written += 1;
            }
            Format::Jsonl => {
                serde_json::to_writer(&mut self.out, &row)?;
                self.out.write_all(b"\n")?;
                self.written += 1;
            }
        }
        Ok(())
    }

    /// Writes the buffered JSON, so that its reader sees the rows that were added so far.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    /// Writes the remaining rows. Returns the number of rows in the whole list.
    pub(crate) fn end(mut self) -> Result<usize, Failure> {
        match self.format {
            Format::Table => self.write_table()?,
            Format::Json if self.written == 0 => self.out.write_all(b"[]\n")?,
            Format::Json => self.out.write_all(b"\n]\n")?,
            Format::Jsonl => {}
        }
        self.out.flush()?;
        Ok(self.written)
    }

    fn write_table(&mut self) -> Result<(), Failure> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.rows.sort_by(|a, b| a.order().cmp(b.order()));
        self.written += self.rows.len();
        let rows = self.rows.drain(..);
        writeln!(
            self.out,
            "{}",
            table(R::TITLES, rows.map(|row| row.cells()))
        )?;
        Ok(())
    }
}

/// Lays out a table. The function does not shorten long texts, so that a user can select and search a whole text. A
/// narrow terminal wraps the long lines.
pub(crate) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(titles);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<_> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}

/// Writes one value as JSON or, in the format for people, as the text that `text` returns.
pub(crate) fn write_one(
    format: Format,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match format {
        Format::Table => out.write_all(text().as_bytes())?,
        Format::Json => serde_json::to_writer_pretty(&mut out, value)?,
        Format::Jsonl => serde_json::to_writer(&mut out, value)?,
    }
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Returns a duration in milliseconds, for JSON.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a duration as readable text.
pub(crate) fn people(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..=59 => format!("{:.1} s", time.as_secs_f64()),
        60..=3599 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit_that_fits() {
        let text = |ms| people(Duration::from_millis(ms));
        assert_eq!(text(0), "0 ms");
        assert_eq!(text(999), "999 ms");
        assert_eq!(text(12_340), "12.3 s");
        assert_eq!(text(61_000), "1 min 1 s");
        assert_eq!(text(3_660_000), "1 h 1 min");
    }

    #[test]
    fn a_table_has_no_spaces_at_the_ends_of_its_lines() {
        let text = table(
            &["KEY", "TOKEN"],
            [
                vec!["a".into(), "1".into()],
                vec!["order:42".into(), "2".into()],
            ],
        );
        assert_eq!(text, "KEY       TOKEN\na         1\norder:42  2");
    }
}
