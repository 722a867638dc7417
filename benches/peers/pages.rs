//! The generated tables of the pages `docs/peers.md` and `docs/performance.md`.

use support::page::Grid;

use crate::{
    names::{ALONE, COST_ROWS, CRATE, EVERY_SIZE, FAULT_ROWS, SHA, SOCKET, awaited},
    report::{Figure, Table},
    runs::WAITERS,
    workloads::{Faults, Measured, row},
};

fn known(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

/// Formats a rate in thousands.
fn thousands(rate: f64) -> String {
    match rate / 1e3 {
        k if k < 0.1 => format!("{k:.3}"),
        k if k < 10.0 => format!("{k:.1}"),
        k => format!("{k:.0}"),
    }
}

fn millis(time: f64) -> String {
    if time < 10.0 {
        format!("{time:.1}")
    } else {
        format!("{time:.0}")
    }
}

/// The parts of the time of one lock and unlock, in µs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    pub(crate) server: f64,
    pub(crate) network: f64,
    pub(crate) client: f64,
}

/// Returns the name of each bar in the chart, and the times of which the bar consists. The first bar stands for two
/// `PING` commands. Each other bar stands for a measured lock.
pub(crate) fn shares(measured: &Measured) -> Vec<(&'static str, Shares)> {
    let tables = measured.report.of("W1").zip(measured.report.of("RT"));
    let Some((alone, trips)) = tables else {
        return Vec::new();
    };
    let socket = trips.median(SOCKET, Figure::Cycle);
    let two_pings = Shares {
        server: 0.0,
        network: 2.0 * socket,
        client: 2.0 * (trips.median(CRATE, Figure::Cycle) - socket).max(0.0),
    };
    let locks = ALONE.into_iter().filter_map(|name| {
        let cycle = known(alone.median(name, Figure::Cycle))?;
        let server = alone.median(name, Figure::ServerTime);
        let network = socket * awaited(name);
        let client = (cycle - server - network).max(0.0);
        let shares = Shares {
            server,
            network,
            client,
        };
        Some((name, shares))
    });
    std::iter::once((TWO_PINGS, two_pings))
        .chain(locks)
        .collect()
}

/// The name of the bar for two round trips. A lock that waits for two answers cannot take less time than these round
/// trips.
pub(crate) const TWO_PINGS: &str = "two PINGs, redis crate";

impl Measured {
    /// Returns the generated text of `docs/peers.md`: how the figures were measured, and the tables of the costs and of
    /// the faults.
    pub(crate) fn peers_page(&self) -> String {
        let mut costs = Grid::new("lock", COST_ROWS);
        if let Some(table) = self.report.of("W1") {
            let title = "one task, own keys: µs (× baseline-sha) · commands · server µs";
            costs.column(title, |row| {
                let cycle = known(table.median(row, Figure::Cycle))?;
                let ratio = table.ratio(row, SHA, Figure::Cycle);
                let [sent, server] =
                    [Figure::Sent, Figure::ServerTime].map(|f| table.median(row, f));
                Some(format!("{cycle:.0} ({ratio:.2}) · {sent:.1} · {server:.0}"))
            });
        }
        if let Some(table) = self.report.of("W2") {
            let title = "64 tasks, own keys: 1000/s (× baseline-sha)";
            costs.column(title, |row| own_keys(table, row));
        }
        if let Some(table) = self.report.of("W3") {
            let title = "64 tasks, one key: 1000/s (× baseline-sha) · commands · server µs · \
                         least/most served · longest wait";
            let baseline = row(SHA, WAITERS);
            costs.column(title, |name| {
                let row = row(name, WAITERS);
                let median = |figure| table.median(&row, figure);
                let rate = known(median(Figure::Rate))? / 1e3;
                let ratio = table.ratio(&row, &baseline, Figure::Rate);
                let [sent, server, least, most, wait] = [
                    Figure::Sent,
                    Figure::ServerTime,
                    Figure::Least,
                    Figure::Most,
                    Figure::WorstWait,
                ]
                .map(median);
                Some(format!(
                    "{rate:.1} ({ratio:.2}) · {sent:.1} · {server:.0} · \
                     {least:.0}/{most:.0} · {wait:.0} ms"
                ))
            });
        }
        if let Some(table) = self.report.of("W4") {
            // On a busy machine, the bodies take longer than 20 ms, which is not the lock's fault. The cell therefore
            // also shows the total time of the bodies.
            let title = "100 callers × 20 ms: s (of which in the bodies) · commands";
            costs.column(title, |row| {
                let wall = known(table.median(row, Figure::Wall))?;
                let [bodies, commands] =
                    [Figure::Bodies, Figure::Commands].map(|f| table.median(row, f));
                Some(format!("{wall:.2} ({bodies:.2}) · {commands:.0}"))
            });
        }
        format!(
            "{}\n\n{}\n{}",
            self.setting,
            costs.markdown(),
            self.fault_grid().markdown()
        )
    }

    fn fault_grid(&self) -> Grid {
        let mut grid = Grid::new("lock", FAULT_ROWS);
        let mut column = |title, cell: fn(&Faults) -> Option<String>| {
            grid.column(title, |row| {
                let faults = self.faults.iter().find(|(name, _)| *name == row);
                cell(&faults?.1)
            });
        };
        column("dropped while acquiring: keys left", |faults| {
            Some(faults.acquiring?.describe())
        });
        column("dropped while holding: keys left", |faults| {
            Some(faults.holding?.describe())
        });
        column("6 s of work in a lease of 2 s", |faults| {
            Some(faults.outlasted?.describe())
        });
        column("lock deleted 0.5 s into 6 s of work", |faults| {
            Some(faults.taken?.describe())
        });
        grid
    }

    /// Returns the generated tables of `docs/performance.md`. The result has a name for each table, and the page has
    /// markers with this name around the table.
    pub(crate) fn performance_page(&self) -> [(&'static str, String); 4] {
        let of = |id| self.report.of(id);
        let setting = |text: String| format!("{}\n\n{text}", self.setting);
        [
            ("one by one", setting(self.one_by_one_grid())),
            (
                "sizes",
                of("W3").map_or_else(String::new, |table| self.sizes_grid(table)),
            ),
            (
                "processes",
                of("W5").map_or_else(String::new, processes_grid),
            ),
            ("server", of("S").map_or_else(String::new, server_grid)),
        ]
    }

    fn one_by_one_grid(&self) -> String {
        let shares = shares(self);
        let mut grid = Grid::new("lock", shares.iter().map(|(name, _)| *name));
        let of = |row: &str| {
            shares
                .iter()
                .find(|(name, _)| *name == row)
                .map(|(_, s)| *s)
        };
        grid.column("one task, µs", |row| {
            let Shares {
                server,
                network,
                client,
            } = of(row)?;
            Some(format!("{:.0}", server + network + client))
        });
        let alone = self.report.of("W1");
        grid.column("× baseline-sha", |row| {
            let ratio = known(alone?.ratio(row, SHA, Figure::Cycle))?;
            Some(format!("{ratio:.2}"))
        });
        grid.column("server, µs", |row| Some(format!("{:.1}", of(row)?.server)));
        grid.column("network, µs", |row| {
            Some(format!("{:.0}", of(row)?.network))
        });
        grid.column("client, µs", |row| Some(format!("{:.0}", of(row)?.client)));
        let many = self.report.of("W2");
        grid.column("64 tasks: 1000/s (× baseline-sha)", |row| {
            own_keys(many?, row)
        });
        grid.markdown()
    }

    fn sizes_grid(&self, table: &Table) -> String {
        let mut grid = Grid::new("lock", COST_ROWS);
        for tasks in self.sizes {
            let title =
                format!("{tasks} tasks: 1000/s · commands · least/most · p50 / p99 / max, ms");
            grid.column(title, |name| {
                let row = row(name, *tasks);
                let median = |figure| table.median(&row, figure);
                let rate = thousands(known(median(Figure::Rate))?);
                let [sent, least, most] = [Figure::Sent, Figure::Least, Figure::Most].map(median);
                let waits = [Figure::MedianWait, Figure::SlowWait, Figure::WorstWait]
                    .map(|figure| millis(median(figure)));
                Some(format!(
                    "{rate} · {sent:.2} · {least:.0}/{most:.0} · {}",
                    waits.join(" / ")
                ))
            });
        }
        grid.markdown()
    }
}

fn own_keys(table: &Table, row: &str) -> Option<String> {
    let rate = known(table.median(row, Figure::Rate))? / 1e3;
    let ratio = table.ratio(row, SHA, Figure::Rate);
    Some(format!("{rate:.1} ({ratio:.2})"))
}

fn processes_grid(table: &Table) -> String {
    let mut grid = Grid::new("lock", EVERY_SIZE);
    grid.column("1000/s (× baseline-sha)", |row| own_keys(table, row));
    let mut column = |title, figure, decimals| {
        grid.column(title, |row| {
            Some(format!(
                "{:.*}",
                decimals,
                known(table.median(row, figure))?
            ))
        });
    };
    column("commands", Figure::Sent, 2);
    column("server µs", Figure::ServerTime, 0);
    column("least served", Figure::Least, 0);
    column("most served", Figure::Most, 0);
    column("p50, ms", Figure::MedianWait, 1);
    column("p99, ms", Figure::SlowWait, 1);
    column("max, ms", Figure::WorstWait, 0);
    grid.markdown()
}

fn server_grid(table: &Table) -> String {
    let mut grid = Grid::new("commands of one lock and unlock", table.row_names());
    let mut column = |title, figure, decimals| {
        grid.column(title, |row| {
            Some(format!(
                "{:.*}",
                decimals,
                known(table.median(row, figure))?
            ))
        });
    };
    column("locks and unlocks/s", Figure::Rate, 0);
    column("commands/s", Figure::Throughput, 0);
    column("server busy", Figure::Busy, 2);
    column("server process, µs", Figure::Processor, 2);
    column("saves, µs", Figure::Less, 2);
    grid.markdown()
}
