//! The soak is a long test in which many processes acquire locks, without faults or under random faults. A host process
//! checks every visit, that is, every stay of a caller inside a lock.

mod chaos;
mod dice;
mod failovers;
mod host;
mod ledger;
mod moves;
mod plan;
mod site;
mod slow;
mod worker;

use std::{process::ExitCode, time::Duration};

use crate::plan::{Course, Servers};

const USAGE: &str = "\
cargo run --release --bin soak -- [--minutes N | --seconds N | --acquisitions N]
    [--faults | --cluster [--failovers N] | --sentinel --failovers N] [--processes N] [--tasks N] [--seed N] [--write]

Worker processes lock hot, warm and cold keys in all ways: with the attribute and with the explicit API, as writers and as readers,
nested, with several keys, with each strategy, and with confirmed and background releases. Their bodies panic, outlast their
lease, or are dropped at any instant. A third of all acquisitions are made by slow pollers: buffered streams, select! loops, and
futures that are polled by hand or forgotten. With --faults, connections are cut, half open, slow and lossy; processes and the
server are killed, stopped and continued; scripts are flushed and keys are deleted. Each of these faults is equally frequent.

With --cluster, the locks are in a Redis Cluster of three primaries, whose slots move from primary to primary all the time. With
--cluster --failovers N, no slot moves, but N primaries are killed one after another; their replicas take over, and the killed
servers return as replicas. With --sentinel --failovers N, Sentinels promote the replicas. The run lasts until the failovers are
over, even if its time or its acquisitions are reached before.

Exits with 0 only if no two holds of a key overlapped while their leases were valid, tokens rose, every call ended, and no key
was left on the servers. Overlaps after a failover whose new primary lacked a grant are counted apart.

--write puts the figures into docs/soak.md. The default is a minute with 4 processes of 16 tasks, and a random seed, which is
printed.";

/// The options of a run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) time: Option<Duration>,
    pub(crate) acquisitions: Option<u64>,
    pub(crate) course: Course,
    /// The number of failovers. The number is 0 in a run that causes no failovers.
    pub(crate) failovers: u64,
    pub(crate) write: bool,
    pub(crate) processes: usize,
    pub(crate) tasks: u64,
    pub(crate) seed: u64,
}

impl Options {
    fn read(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            time: None,
            acquisitions: None,
            course: Course::Calm,
            failovers: 0,
            write: false,
            processes: 4,
            tasks: 16,
            seed: support::clock::now(),
        };
        let (mut faults, mut cluster, mut sentinel) = (false, false, false);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--faults" => {
                    faults = true;
                    continue;
                }
                "--cluster" => {
                    cluster = true;
                    continue;
                }
                "--sentinel" => {
                    sentinel = true;
                    continue;
                }
                "--write" => {
                    options.write = true;
                    continue;
                }
                _ => {}
            }
            let number = args.next().and_then(|number| number.parse::<u64>().ok());
            let number = number.filter(|number| *number > 0);
            let number = number.ok_or_else(|| format!("{arg}: a number is missing"))?;
            match arg.as_str() {
                "--minutes" => options.time = Some(Duration::from_secs(60 * number)),
                "--seconds" => options.time = Some(Duration::from_secs(number)),
                "--acquisitions" => options.acquisitions = Some(number),
                "--processes" => options.processes = usize::try_from(number).unwrap_or(usize::MAX),
                "--tasks" => options.tasks = number,
                "--seed" => options.seed = number,
                "--failovers" => options.failovers = number,
                _ => return Err(format!("{arg} is not known")),
            }
        }
        options.course = match (faults, cluster, sentinel, options.failovers) {
            (false, false, false, 0) => Course::Calm,
            (true, false, false, 0) => Course::Faults,
            (false, true, false, 0) => Course::Moves,
            (false, true, false, _) => Course::Failovers(Servers::Cluster),
            (false, false, true, 1..) => Course::Failovers(Servers::Sentinels),
            (false, false, true, 0) => return Err("--sentinel needs --failovers".into()),
            (_, false, false, _) => {
                return Err("--failovers needs --cluster or --sentinel".into());
            }
            _ => return Err("use only one of --faults, --cluster and --sentinel".into()),
        };
        if options.acquisitions.is_none() {
            options.time.get_or_insert(Duration::from_secs(60));
        }
        Ok(options)
    }

    /// Returns which fraction of the run is done.
    pub(crate) fn part(&self, elapsed: Duration, acquisitions: u64) -> f64 {
        let time = self
            .time
            .map(|time| elapsed.as_secs_f64() / time.as_secs_f64());
        let count = self
            .acquisitions
            .map(|all| acquisitions as f64 / all as f64);
        time.into_iter().chain(count).fold(0.0, f64::max)
    }

    /// Returns which fraction of the run is done. `part` is the fraction of its time or of its acquisitions, and
    /// `failovers` is the number of failovers that have begun. The run ends when both are complete.
    pub(crate) fn part_with_failovers(&self, part: f64, failovers: usize) -> f64 {
        match self.failovers {
            0 => part,
            all => part.min(failovers as f64 / all as f64),
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the tokio runtime can be built");
    if let [what, url, place, processes, tasks, seed, how] = args.as_slice()
        && what == "worker"
    {
        let number = |text: &str| text.parse::<u64>().expect("the host passes numbers");
        let small = |text| u32::try_from(number(text)).expect("the host passes numbers");
        let orders = worker::Orders {
            place: small(place),
            processes: small(processes),
            tasks: number(tasks),
            seed: number(seed),
            course: plan::Course::read(how).expect("the host passes the name of a course"),
        };
        runtime.block_on(worker::work(url, orders));
        return ExitCode::SUCCESS;
    }
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::read(&args) {
        Ok(options) => {
            if runtime.block_on(host::run(options)) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}
