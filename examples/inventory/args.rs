//! The command-line arguments of the example `inventory`.

use crate::worker::{Order, WORKER};

pub(crate) const USAGE: &str = "\
usage: inventory [--quick | --write]
  --quick    runs a smaller sale with fewer callers, in a few seconds, and asserts the same
  --write    writes the tables into docs/inventory.md and docs/guides/strategies.md, and draws docs/inventory.svg (four minutes)";

/// The role of this process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Help,
    Host(Job),
    Worker(Order),
}

/// The options of the process that the user starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) quick: bool,
    pub(crate) write: bool,
}

/// Parses a command line. The error says what is wrong with the command line.
pub(crate) fn read(args: &[String]) -> Result<Role, String> {
    if let Some((WORKER, order)) = args
        .split_first()
        .map(|(first, rest)| (first.as_str(), rest))
    {
        return Order::read(order).map(Role::Worker);
    }
    let mut job = Job::default();
    for option in args {
        match option.as_str() {
            "--quick" => job.quick = true,
            "--write" => job.write = true,
            "--help" | "-h" => return Ok(Role::Help),
            _ => return Err(format!("unknown argument `{option}`")),
        }
    }
    if job.quick && job.write {
        return Err("`--write` needs the results of a full run: leave out `--quick`".into());
    }
    Ok(Role::Host(job))
}
