//! Writes the results of the sales as tables into the pages of the documentation.

use std::{fmt, fs, time::Duration};

use support::page::{self, Grid};

use crate::{
    Failure,
    accidents::{Aftermath, Late},
    guard::Guard,
    purchase::Outcome,
    rows::{Row, Size, WAITING, Waiting},
    servers::Servers,
};

/// The name of the markers that enclose a table of guards (ways to guard the stock) in a page.
const GUARDS: &str = "guards";
/// The name of the markers that enclose the table of waiting callers.
const WAITS: &str = "waits";

const FIRST_COLUMN: &str = "guard";

/// The results of a run as tables in Markdown.
#[derive(Debug)]
pub(crate) struct Report {
    setting: String,
    guards: Grid,
    /// The table for `docs/guides/strategies.md`, which contains only the most important columns.
    short: Grid,
    waits_setting: String,
    waits: Grid,
}

impl Report {
    pub(crate) async fn new(
        servers: &Servers,
        size: Size,
        rows: &[Row],
        waits: &[Waiting],
    ) -> Self {
        let names = || Guard::ALL.map(Guard::name);
        let mut guards = Grid::new(FIRST_COLUMN, names());
        let mut short = Grid::new(FIRST_COLUMN, names());
        let oversold = |row: &Row| row.audit.oversold().to_string();
        let column = |grid: &mut Grid, title: &str, cell: &dyn Fn(&Row) -> String| {
            grid.column(title, |name| {
                let row = rows.iter().find(|row| row.guard.name() == name);
                row.map(cell)
            });
        };
        column(&mut guards, "oversold", &oversold);
        column(&mut short, "oversold in a rush", &oversold);
        column(&mut guards, "lost or doubled", &|row| {
            row.amiss().to_string()
        });
        for grid in [&mut guards, &mut short] {
            column(grid, "commands per acquisition", &commands);
        }
        column(&mut guards, "commands/s", &|row| {
            format!("{:.0}", row.rush.per_second())
        });
        column(&mut guards, "wall ÷ ideal", &|row| {
            format!("{:.2}", row.rush.over_ideal())
        });
        column(&mut guards, "wait p50 / p99 / max, ms", &|row| {
            let [half, most, all] = [0.5, 0.99, 1.0].map(|share| millis(row.rush.wait(share)));
            format!("{half:.0} / {most:.0} / {all:.0}")
        });
        column(&mut short, "longest wait", &|row| {
            format!("{:.0} ms", millis(row.rush.wait(1.0)))
        });
        column(&mut guards, "least/most served", &|row| {
            let (least, most) = row.rush.least_and_most();
            format!("{least}/{most}")
        });
        for grid in [&mut guards, &mut short] {
            column(grid, "a buyer dies inside", &|row| {
                died(row.death.aftermath)
            });
            column(grid, "a buyer is slower than its lease", &slow);
        }
        Self {
            setting: setting(size, &servers.version().await),
            guards,
            short,
            waits_setting: waits_setting(size),
            waits: waiting(waits),
        }
    }

    fn guards(&self) -> String {
        format!("{}\n\n{}", self.setting, self.guards.markdown())
    }

    fn waits(&self) -> String {
        format!("{}\n\n{}", self.waits_setting, self.waits.markdown())
    }

    /// Writes the tables into their pages, and the picture into `docs`.
    pub(crate) fn write(&self, picture: &str) -> Result<(), Failure> {
        let root = support::root();
        let page = root.join("docs/inventory.md");
        page::update(&page, GUARDS, &self.guards())?;
        page::update(&page, WAITS, &self.waits())?;
        let guide = root.join("docs/guides/strategies.md");
        page::update(&guide, GUARDS, &self.short.markdown())?;
        fs::write(root.join("docs/inventory.svg"), picture)?;
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.guards(), self.waits())
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the text that describes how the rush was measured.
fn setting(size: Size, redis: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let Size { items, rush, .. } = size;
    format!(
        "{} buyers share {} clients, and there are {items} items. Each buyer tries to buy up to {} times, pauses for \
         {} ms in between, and thinks for {} each time. The server is Redis {redis} on the same machine, which has {cores} \
         cores.",
        rush.buyers,
        rush.sessions,
        rush.wishes,
        millis(rush.walk),
        rush.pace
    )
}

fn waits_setting(size: Size) -> String {
    let holds = size
        .holds
        .iter()
        .map(|hold| format!("{} ms", millis(*hold)));
    format!(
        "{} callers at {} clients call for one key at once. Each caller holds the lock for {}.",
        size.callers,
        size.rush.sessions,
        holds.collect::<Vec<_>>().join(", or in another run for ")
    )
}

fn commands(row: &Row) -> String {
    let commands = format!("{:.1}", row.rush.per_acquisition());
    match row.guard {
        Guard::Watch => {
            let tries = row.rush.tries() as f64 / row.rush.entries() as f64;
            format!("{commands} ({tries:.1} tries)")
        }
        _ => commands,
    }
}

fn died(aftermath: Aftermath) -> String {
    match aftermath {
        Aftermath::NothingHeld => "not applicable: nothing is held".into(),
        Aftermath::Free(after) => format!("free after the lease: {:.1} s", after.as_secs_f64()),
        Aftermath::StandsStill => "the sale stops".into(),
    }
}

fn slow(row: &Row) -> String {
    let one = harm(&row.late);
    match &row.blocked {
        Some(blocked) => format!("{one}; if it blocks its thread, {}", harm(blocked)),
        None => one,
    }
}

fn harm(late: &Late) -> String {
    let oversold = late.audit.oversold();
    match late.ended {
        _ if oversold > 0 => format!("oversells {oversold}"),
        _ if !late.others_came_in => "no other buyer enters".into(),
        Outcome::Cancelled => "cancelled".into(),
        Outcome::Refused => "its late write is refused by its token".into(),
        Outcome::Sold => "its write is refused, and it tries again".into(),
        Outcome::SoldOut | Outcome::Left => "comes too late".into(),
    }
}

/// Returns the table of waiting callers, with three columns for each hold time.
fn waiting(waits: &[Waiting]) -> Grid {
    let mut grid = Grid::new(FIRST_COLUMN, WAITING.map(Guard::name));
    let mut holds: Vec<Duration> = waits.iter().map(|waiting| waiting.hold).collect();
    holds.dedup();
    type Cell = fn(&Waiting) -> String;
    let columns: [(&str, Cell); 3] = [
        ("commands/s", |waiting| {
            format!("{:.0}", waiting.waiters.per_second())
        }),
        ("commands per acquisition", |waiting| {
            format!("{:.1}", waiting.waiters.per_acquisition())
        }),
        ("wall ÷ ideal", |waiting| {
            format!("{:.2}", waiting.waiters.over_ideal())
        }),
    ];
    for hold in holds {
        for (title, cell) in columns {
            grid.column(format!("{} ms each: {title}", millis(hold)), |name| {
                let mut waits = waits.iter();
                let found = waits.find(|row| row.hold == hold && row.guard.name() == name);
                found.map(cell)
            });
        }
    }
    grid
}
