//! The command line.

use std::{path::PathBuf, time::Duration};

/// How often and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    /// What is measured of a run, after a tenth of it to warm up.
    pub(crate) span: Duration,
}

impl Pace {
    const QUICK: Self = Self {
        rounds: 1,
        span: Duration::from_secs(1),
    };
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) pace: Pace,
    only: Vec<String>,
    pub(crate) json: PathBuf,
}

impl Options {
    /// Reads the arguments of a benchmark: its own pace, its workloads, and the file it writes unless it is told another.
    pub(crate) fn parse(
        args: impl Iterator<Item = String>,
        full: Pace,
        workloads: &[&str],
        file: &str,
    ) -> Result<Self, String> {
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
        if let Some(name) = only.iter().find(|name| !workloads.contains(&name.as_str())) {
            return Err(format!("there is no workload {name}"));
        }
        let pace = if quick || !as_benchmark {
            Pace::QUICK
        } else {
            full
        };
        let json = json.unwrap_or_else(|| {
            let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
            PathBuf::from(target).join("bench").join(file)
        });
        Ok(Self { pace, only, json })
    }

    pub(crate) fn wants(&self, workload: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == workload)
    }
}
