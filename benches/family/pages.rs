//! The generated tables of the page `docs/performance.md`.

use support::page::Grid;

use crate::{
    report::{Figure, Report, Table},
    workloads::{OTHERS, OURS, REDISSON, row},
};

/// Returns the tables of all workloads that were measured, as Markdown.
pub(crate) fn markdown(report: &Report) -> String {
    let grid = |id, grid: fn(&Table) -> Grid| Some(grid(report.of(id)?).markdown());
    let grids = [
        grid("readers", readers),
        grid("releases", releases),
        grid("mixed", mixed),
        grid("permits", permits),
        grid("leader", leader),
    ];
    let grids = grids.into_iter().flatten();
    grids.collect::<Vec<_>>().join("\n")
}

/// Formats a number, or returns `None` for NaN.
fn shown(value: f64, decimals: usize) -> Option<String> {
    value.is_finite().then(|| format!("{value:.decimals$}"))
}

fn rows(table: &Table, first: &str) -> Grid {
    Grid::new(first, table.row_names())
}

fn rate(table: &Table, grid: &mut Grid) {
    grid.column("1000/s", |row| {
        shown(table.median(row, Figure::Rate) / 1e3, 1)
    });
}

fn costs(table: &Table, grid: &mut Grid) {
    for (title, figure, decimals) in [
        ("commands", Figure::Sent, 2),
        ("server µs", Figure::ServerTime, 0),
    ] {
        grid.column(title, |row| shown(table.median(row, figure), decimals));
    }
}

fn readers(table: &Table) -> Grid {
    let mut grid = rows(table, "64 tasks, one key");
    rate(table, &mut grid);
    let ratio = |row: &str, other: &str| shown(table.ratio(row, other, Figure::Rate), 2);
    grid.column("× our writers", |name| {
        let length = name.split_once(" of ").map(|(_, length)| length);
        let writers = length.map_or("writers".into(), |length| format!("writers of {length}"));
        ratio(name, &row(OURS, writers))
    });
    // Redisson's readers do not stay inside.
    grid.column("× Redisson's readers", |name| {
        let is_long = name.contains(" of ");
        (!is_long).then(|| ratio(name, &row(REDISSON, "readers")))?
    });
    costs(table, &mut grid);
    grid
}

fn releases(table: &Table) -> Grid {
    let mut grid = Grid::new("release of one reader, server µs", [OURS, REDISSON]);
    for others in OTHERS {
        grid.column(format!("others inside: {others}"), |name| {
            shown(table.median(&row(name, others), Figure::ServerTime), 0)
        });
    }
    grid
}

fn mixed(table: &Table) -> Grid {
    let mut grid = rows(table, "64 tasks, one key, 95 % reads, 5 % writes");
    rate(table, &mut grid);
    grid.column("× ours", |row| {
        shown(table.ratio(row, OURS, Figure::Rate), 3)
    });
    for (title, figure) in [
        ("longest wait of a reader, ms", Figure::ReaderWait),
        ("longest wait of a writer, ms", Figure::WriterWait),
    ] {
        grid.column(title, |row| shown(table.highest(row, figure), 0));
    }
    grid
}

fn permits(table: &Table) -> Grid {
    let mut grid = rows(table, "64 tasks, one semaphore of 10");
    rate(table, &mut grid);
    grid.column("× ours", |row| {
        shown(table.ratio(row, OURS, Figure::Rate), 3)
    });
    costs(table, &mut grid);
    for (title, figure) in [
        ("least served", Figure::Least),
        ("most served", Figure::Most),
    ] {
        grid.column(title, |row| shown(table.median(row, figure), 0));
    }
    grid.column("longest wait, ms", |row| {
        shown(table.highest(row, Figure::WorstWait), 0)
    });
    grid
}

fn leader(table: &Table) -> Grid {
    let mut grid = rows(table, "nobody leads, ms");
    grid.column("median", |row| shown(table.median(row, Figure::Vacant), 3));
    grid.column("longest", |row| {
        shown(table.highest(row, Figure::Vacant), 3)
    });
    grid
}
