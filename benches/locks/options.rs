//! The command-line options of the benchmarks.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use support::server::is_installed;

/// The pace of a benchmark: the number of rounds, the length of a run, and the numbers of tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    /// The measured time of a run. Before it begins, the run warms up for at least a tenth of this time.
    pub(crate) span: Duration,
    /// The numbers of tasks that want one key. The workload W3 has a run for each of these numbers.
    pub(crate) sizes: &'static [usize],
}

/// The numbers of tasks in a full run.
pub(crate) const SIZES: [usize; 4] = [8, 64, 512, 10_000];
/// The numbers of tasks in a quick run.
const QUICK_SIZES: [usize; 3] = [8, 64, 512];

impl Pace {
    pub(crate) const QUICK: Self = Self {
        rounds: 1,
        span: Duration::from_secs(1),
        sizes: &QUICK_SIZES,
    };
}

/// The settings of a benchmark that is started without options.
#[derive(Debug)]
pub(crate) struct Defaults {
    pub(crate) pace: Pace,
    pub(crate) workloads: &'static [&'static str],
    /// The name of the benchmark's JSON file.
    pub(crate) file: &'static str,
    pub(crate) usage: &'static str,
}

/// The options of the command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) pace: Pace,
    only: Vec<String>,
    pub(crate) json: PathBuf,
}

impl Options {
    /// Parses the arguments, and checks that `redis-server` is installed. If an argument is wrong or `redis-server` is
    /// missing, prints the reason and returns the exit code.
    pub(crate) fn read(
        args: impl Iterator<Item = String>,
        defaults: &Defaults,
    ) -> Result<Self, ExitCode> {
        let options = Self::parse(args, defaults).map_err(|problem| {
            eprintln!("{problem}\nusage: {}", defaults.usage);
            ExitCode::from(2)
        })?;
        if is_installed("redis-server") {
            return Ok(options);
        }
        eprintln!(
            "the benchmark starts a server of its own, and redis-server is not installed: `sh tests/check.sh` \
             installs it, or use the package redis-server (apt-get) or redis (brew)"
        );
        Err(ExitCode::from(2))
    }

    fn parse(args: impl Iterator<Item = String>, defaults: &Defaults) -> Result<Self, String> {
        let (mut quick, mut as_benchmark) = (false, false);
        let mut only = Vec::new();
        let mut json = None;
        let mut args = args;
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => quick = true,
                "--bench" => as_benchmark = true,
                "--only" => only.extend(value()?.split(',').map(str::to_lowercase)),
                "--json" => json = Some(PathBuf::from(value()?)),
                _ => return Err(format!("{arg} is not an option")),
            }
        }
        if let Some(name) = only
            .iter()
            .find(|name| !defaults.workloads.contains(&name.as_str()))
        {
            return Err(format!("there is no workload {name}"));
        }
        let pace = if quick || !as_benchmark {
            Pace::QUICK
        } else {
            defaults.pace
        };
        let json = json.unwrap_or_else(|| {
            let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
            PathBuf::from(target).join("bench").join(defaults.file)
        });
        Ok(Self { pace, only, json })
    }

    pub(crate) fn wants(&self, workload: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == workload)
    }
}
