//! Compares a Redis Cluster of three primaries with one server, and with a cluster of one primary. In a cluster of one
//! primary, no messages go to other primaries. All servers and all clients share one machine. The rates therefore show
//! the cost of a cluster, and not the gain of a cluster whose servers have machines of their own. `cpu_us` is the
//! processor time of all servers together for one acquisition and its release.

use std::{sync::Arc, time::Duration};

use progress::Progress;
use support::{cluster::ClusterServers, page::Grid, sent::Sent, server::RedisServer};

use crate::{
    candidates::{Candidate, Who},
    options::Pace,
    processes::Workers,
    report::{Figure, Limit, Report, Run, Table},
    runs::{WAITERS, own_seats, per_acquisition, run_of, same_seats},
    server_share::worked,
    waiters::{Detector, Waiters, gather},
};

pub(crate) const ID: &str = "C";

const PRIMARIES: usize = 3;
/// The number of tasks in the workload in which each task has a key of its own.
const KEYS: usize = 1_000;
/// The number of parts into which a round is divided. In each part, the single server and the cluster run once, and the
/// benchmark computes one ratio. A machine that is slow for a moment therefore changes only some ratios, and seldom
/// their median.
const PARTS: u32 = 6;

const ONE_SERVER: &str = "one server";
const ONE_PRIMARY: &str = "cluster of 1";
const THREE_PRIMARIES: &str = "cluster of 3";

/// Which keys the tasks of a run lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// The tasks of one process want the same key (as in the workload W3).
    OneKey,
    /// The tasks of several processes want the same key (as in the workload W5).
    Processes,
    /// Each task of one process wants a key of its own.
    OwnKeys,
}

impl Work {
    const ALL: [Self; 3] = [Self::OneKey, Self::Processes, Self::OwnKeys];

    fn name(self) -> &'static str {
        match self {
            Self::OneKey => "64 tasks, one key",
            Self::Processes => "4 processes × 16 tasks, one key",
            Self::OwnKeys => "1000 tasks, each its own key",
        }
    }

    fn row(self, servers: &str) -> String {
        format!("{}: {servers}", self.name())
    }
}

/// The servers of a run, and a client of these servers.
struct Place<'a> {
    name: &'static str,
    url: String,
    servers: &'a [RedisServer],
    client: Candidate,
}

impl<'a> Place<'a> {
    async fn new(name: &'static str, url: String, servers: &'a [RedisServer]) -> Self {
        let client = Candidate::connect(Who::Ours, &url).await;
        Self {
            name,
            url,
            servers,
            client,
        }
    }

    /// Returns the commands that were sent to all servers so far, and the processor time that all servers have used, in
    /// µs.
    async fn so_far(&self) -> (Sent, f64) {
        let (mut all, mut micros) = (Sent::default(), 0.0);
        for server in self.servers {
            let sent = Sent::so_far(server, &[]).await;
            all.commands += sent.commands;
            all.micros += sent.micros;
            micros += worked(&mut server.connection().await).await;
        }
        (all, micros)
    }

    /// Runs the tasks on these servers.
    async fn run(&self, work: Work, span: Duration) -> Run {
        let workers =
            (work == Work::Processes).then(|| Workers::start(&self.url, Who::Ours.name()));
        let (before, idle) = self.so_far().await;
        let (waiters, mut run): (Waiters, Run) = match workers {
            Some(workers) => workers.run(span),
            None => {
                let detector = Arc::new(Detector::default());
                let (seats, shared) = match work {
                    Work::OwnKeys => (own_seats(KEYS), None),
                    _ => (same_seats(WAITERS), Some(&detector)),
                };
                let waiters = gather(&self.client, seats, span, shared).await;
                let run = run_of(&waiters, detector.overlaps());
                (waiters, run)
            }
        };
        let (after, busy) = self.so_far().await;
        let sent = Sent {
            commands: after.commands - before.commands,
            micros: after.micros - before.micros,
        };
        run.extend(per_acquisition(sent, &waiters));
        run.insert(Figure::Processor, (busy - idle) / waiters.served as f64);
        run
    }
}

/// Runs each workload on one server and on a cluster in turn, and adds the table and its targets to the report.
pub(crate) async fn measure(pace: Pace, report: &mut Report, progress: &Progress) {
    let server = [RedisServer::start().await];
    let single = ClusterServers::start(1).await;
    let cluster = ClusterServers::start(PRIMARIES).await;
    let places = [
        Place::new(ONE_PRIMARY, single.url(), &single.servers).await,
        Place::new(ONE_SERVER, server[0].url(), &server).await,
        Place::new(THREE_PRIMARIES, cluster.url(), &cluster.servers).await,
    ];
    let mut table = Table::new(ID, "a cluster of three primaries and one server");
    for round in 1..=pace.rounds {
        progress.begin(format_args!("cluster, round {round}"));
        for work in Work::ALL {
            for part in 0..PARTS {
                // The server and the cluster take turns at running first, so that neither of them profits from the
                // order.
                let mut order: Vec<_> = places.iter().collect();
                order.rotate_left(part as usize % places.len());
                for place in order {
                    let run = place.run(work, pace.span / PARTS).await;
                    table.add(work.row(place.name), run);
                }
            }
        }
    }
    for work in [Work::OneKey, Work::Processes] {
        let what = format!("rate of {}, × one server", work.name());
        report.target(
            ID,
            &what,
            Limit::AtLeast(0.8),
            rate(&table, work, THREE_PRIMARIES),
        );
    }
    report.table(table);
}

/// Returns the rate of a cluster divided by the rate of the single server.
fn rate(table: &Table, work: Work, cluster: &str) -> f64 {
    table.ratio(&work.row(cluster), &work.row(ONE_SERVER), Figure::Rate)
}

/// Formats the table for the page `docs/performance.md`.
pub(crate) fn markdown(table: &Table, pace: Pace) -> String {
    let mut grid = Grid::new("workload", Work::ALL.map(Work::name));
    let work = |name: &str| {
        let work = Work::ALL.into_iter().find(|work| work.name() == name);
        work.expect("each workload has a row")
    };
    for servers in [ONE_SERVER, ONE_PRIMARY, THREE_PRIMARIES] {
        let median = |name: &str, figure| table.median(&work(name).row(servers), figure);
        grid.column(
            format!("{servers}: 1000/s (× one server) · commands · server processes, µs"),
            |name| {
                Some(format!(
                    "{:.1} ({:.2}) · {:.2} · {:.1}",
                    median(name, Figure::Rate) / 1e3,
                    rate(table, work(name), servers),
                    median(name, Figure::Sent),
                    median(name, Figure::Processor)
                ))
            },
        );
    }
    format!(
        "Medians of {} interleaved runs of {:.0?}.\n\n{}",
        pace.rounds * PARTS as usize,
        pace.span / PARTS,
        grid.markdown()
    )
}
