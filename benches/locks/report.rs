//! The measured figures, their medians and their ratios, as printed tables and as JSON.

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::options::Pace;

/// The kinds of measured figures, in the order of the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Figure {
    Cycle,
    Rate,
    Throughput,
    Scripts,
    Sent,
    ServerTime,
    Least,
    Most,
    Fairness,
    MedianWait,
    SlowWait,
    WorstWait,
    ReaderWait,
    WriterWait,
    Vacant,
    SlowTurns,
    Processor,
    Busy,
    Less,
    Wall,
    OverIdeal,
    Bodies,
    Commands,
    OwnCount,
    Overlaps,
}

impl Figure {
    /// Returns the name of the figure in the table and in the JSON.
    fn name(self) -> &'static str {
        match self {
            Self::Cycle => "cycle_us",
            Self::Rate => "per_s",
            Self::Throughput => "commands/s",
            Self::Scripts => "scripts_per",
            Self::Sent => "sent_per",
            Self::ServerTime => "server_us",
            Self::Least => "least",
            Self::Most => "most",
            Self::Fairness => "least/most",
            Self::MedianWait => "p50_ms",
            Self::SlowWait => "p99_ms",
            Self::WorstWait => "max_ms",
            Self::ReaderWait => "reader_ms",
            Self::WriterWait => "writer_ms",
            Self::Vacant => "vacant_ms",
            Self::SlowTurns => "p99_turns",
            Self::Processor => "cpu_us",
            Self::Busy => "busy",
            Self::Less => "less_us",
            Self::Wall => "wall_s",
            Self::OverIdeal => "over_ideal",
            Self::Bodies => "bodies_s",
            Self::Commands => "commands",
            Self::OwnCount => "own_count",
            Self::Overlaps => "overlaps",
        }
    }

    fn decimals(self) -> usize {
        match self {
            Self::Rate
            | Self::Throughput
            | Self::Least
            | Self::Most
            | Self::Commands
            | Self::OwnCount
            | Self::Overlaps => 0,
            Self::ServerTime
            | Self::Cycle
            | Self::MedianWait
            | Self::SlowWait
            | Self::WorstWait
            | Self::ReaderWait
            | Self::WriterWait => 1,
            Self::Scripts
            | Self::Sent
            | Self::Fairness
            | Self::Vacant
            | Self::SlowTurns
            | Self::Processor
            | Self::Busy
            | Self::Less
            | Self::Wall
            | Self::OverIdeal
            | Self::Bodies => 3,
        }
    }
}

/// The figures of one run.
pub(crate) type Run = BTreeMap<Figure, f64>;

/// The results of a workload. A row contains the results of one lock with one number of tasks: a run for each round.
#[derive(Debug)]
pub(crate) struct Table {
    id: &'static str,
    title: &'static str,
    rows: Vec<(String, Vec<Run>)>,
}

impl Table {
    pub(crate) fn new(id: &'static str, title: &'static str) -> Self {
        Self {
            id,
            title,
            rows: Vec::new(),
        }
    }

    /// Adds a run to a row. The runs of a row have to be added in the order of the rounds, because ratios are computed
    /// within a round.
    pub(crate) fn add(
        &mut self,
        row: impl Into<String>,
        run: impl IntoIterator<Item = (Figure, f64)>,
    ) {
        let (row, run) = (row.into(), run.into_iter().collect());
        match self.rows.iter_mut().find(|(name, _)| *name == row) {
            Some((_, runs)) => runs.push(run),
            None => self.rows.push((row, vec![run])),
        }
    }

    fn values(&self, row: &str, figure: Figure) -> Vec<f64> {
        let runs = self.rows.iter().find(|(name, _)| name == row);
        let runs = runs.map(|(_, runs)| runs.as_slice()).unwrap_or_default();
        runs.iter()
            .filter_map(|run| run.get(&figure).copied())
            .collect()
    }

    /// Returns the median of a figure over all rounds, or NaN if the row does not have the figure.
    pub(crate) fn median(&self, row: &str, figure: Figure) -> f64 {
        median(self.values(row, figure))
    }

    /// Returns the highest value of a figure over all rounds, or NaN if the row does not have the figure.
    pub(crate) fn highest(&self, row: &str, figure: Figure) -> f64 {
        let values = self.values(row, figure).into_iter();
        values.fold(f64::NAN, f64::max)
    }

    /// Returns the ratio of the row `row` to the row `to`: the median of the ratios within each round. Returns NaN if
    /// one of the rows does not have the figure.
    pub(crate) fn ratio(&self, row: &str, to: &str, figure: Figure) -> f64 {
        let (row, to) = (self.values(row, figure), self.values(to, figure));
        median(row.iter().zip(&to).map(|(row, to)| row / to).collect())
    }

    /// Returns the names of the rows.
    pub(crate) fn row_names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|(name, _)| name.as_str())
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures: Vec<Figure> = self
            .rows
            .iter()
            .flat_map(|(_, runs)| runs.iter().flat_map(|run| run.keys().copied()))
            .collect();
        figures.sort_unstable();
        figures.dedup();
        figures
    }

    fn print(&self) {
        println!("\n{} {}", self.id, self.title);
        let figures = self.figures();
        let width = self.rows.iter().map(|(row, _)| row.len()).max();
        let width = width.unwrap_or_default();
        print!("  {:width$}", "");
        for figure in &figures {
            print!("  {:>11}", figure.name());
        }
        println!();
        for (row, _) in &self.rows {
            print!("  {row:width$}");
            for figure in &figures {
                let value = self.median(row, *figure);
                if value.is_nan() {
                    print!("  {:>11}", "-");
                } else {
                    print!("  {value:>11.*}", figure.decimals());
                }
            }
            println!();
        }
    }

    fn json(&self) -> String {
        let rows = self.rows.iter().map(|(row, runs)| {
            let figures = self.figures().into_iter().map(|figure| {
                let rounds = runs.iter().map(|run| number(run.get(&figure).copied()));
                format!(
                    "\"{}\":{{\"median\":{},\"rounds\":[{}]}}",
                    figure.name(),
                    number(Some(self.median(row, figure))),
                    join(rounds)
                )
            });
            format!("\"{row}\":{{{}}}", join(figures))
        });
        format!(
            "{{\"id\":\"{}\",\"title\":\"{}\",\"rows\":{{{}}}}}",
            self.id,
            self.title,
            join(rows)
        )
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => values[n / 2 - 1].midpoint(values[n / 2]),
    }
}

/// Formats a number for JSON. JSON has neither NaN nor infinity, so a value that is not finite becomes `null`. A
/// missing value also becomes `null`.
fn number(value: Option<f64>) -> String {
    match value {
        Some(value) if value.is_finite() => format!("{value}"),
        _ => "null".to_owned(),
    }
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

/// A target, which is the highest or the lowest value that a figure should have.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    fn is_reached(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    fn describe(self) -> String {
        match self {
            Self::AtMost(limit) => format!("at most {limit}"),
            Self::AtLeast(limit) => format!("at least {limit}"),
        }
    }
}

#[derive(Debug)]
struct Target {
    id: &'static str,
    what: String,
    limit: Limit,
    value: f64,
}

/// All tables of the benchmark, and its targets.
#[derive(Debug)]
pub(crate) struct Report {
    pace: Pace,
    tables: Vec<Table>,
    targets: Vec<Target>,
}

impl Report {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            tables: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// Returns the table of a workload, or `None` if the workload was not measured.
    pub(crate) fn of(&self, id: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.id == id)
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    pub(crate) fn target(&mut self, id: &'static str, what: &str, limit: Limit, value: f64) {
        self.targets.push(Target {
            id,
            what: what.to_owned(),
            limit,
            value,
        });
    }

    /// Returns how often two bodies held one lock at the same time in any run.
    pub(crate) fn overlaps(&self) -> u64 {
        let runs = self
            .tables
            .iter()
            .flat_map(|table| table.rows.iter().flat_map(|(_, runs)| runs));
        runs.filter_map(|run| run.get(&Figure::Overlaps))
            .sum::<f64>() as u64
    }

    pub(crate) fn print(&self) {
        let Pace { rounds, span, .. } = self.pace;
        println!("medians of {rounds} round(s) of {span:?}");
        for table in &self.tables {
            table.print();
        }
        if !self.targets.is_empty() {
            println!("\ntargets");
        }
        for target in &self.targets {
            let Target {
                id,
                what,
                limit,
                value,
            } = target;
            let verdict = if limit.is_reached(*value) {
                "reached"
            } else {
                "NOT reached"
            };
            let limit = limit.describe();
            println!("  {id} {what:<48} {value:>9.3}   {limit:<14} {verdict}");
        }
    }

    pub(crate) fn json(&self) -> String {
        let targets = self.targets.iter().map(|target| {
            format!(
                "{{\"id\":\"{}\",\"what\":\"{}\",\"limit\":\"{}\",\"value\":{},\"reached\":{}}}",
                target.id,
                target.what,
                target.limit.describe(),
                number(Some(target.value)),
                target.limit.is_reached(target.value)
            )
        });
        format!(
            "{{\"rounds\":{},\"span_s\":{},\"overlaps\":{},\"workloads\":[{}],\"targets\":[{}]}}\n",
            self.pace.rounds,
            self.pace.span.as_secs_f64(),
            self.overlaps(),
            join(self.tables.iter().map(Table::json)),
            join(targets)
        )
    }
}

/// Writes a file. Creates the file's folder if the folder does not exist.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}
