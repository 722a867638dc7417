//! `lockctl limit`: the number of permits of a semaphore that an operator sets for the whole fleet.

use std::convert::Infallible;

use clap::Args;
use lock_runtime::{LockClient, LockError, Semaphore};
use serde::Serialize;

use crate::{
    exit::{Exit, Failure},
    output::{Format, write_one},
};

#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// The name of the semaphore, or its key, which begins with `permits:`
    #[arg(value_parser = |name: &str| Ok::<_, Infallible>(name_of(name).to_owned()))]
    name: String,
    /// The number of permits, at most 1000, instead of the numbers that the callers name; 0 lets nobody enter
    permits: Option<u32>,
    /// Removes the number, so that each caller's own number counts again
    #[arg(long, conflicts_with = "permits")]
    clear: bool,
}

impl LimitArgs {
    /// Returns whether the command sets or removes the number.
    pub(crate) fn changes(&self) -> bool {
        self.clear || self.permits.is_some()
    }
}

#[derive(Serialize)]
struct Report {
    name: String,
    limit: Option<u32>,
}

/// The beginning of the key under which a semaphore is stored.
const PERMITS: &str = "permits:";

fn name_of(name: &str) -> &str {
    name.strip_prefix(PERMITS).unwrap_or(name)
}

fn semaphore(client: &LockClient, name: &str) -> Semaphore {
    client.semaphore(name, 1) // the number of a caller is not used here
}

/// Reads the number that an operator has set for the semaphore that is stored under this key. Returns `None` for the key of a
/// lock.
pub(crate) async fn of_key(client: &LockClient, key: &str) -> Result<Option<u32>, LockError> {
    match key.strip_prefix(PERMITS) {
        Some(name) => semaphore(client, name).limit().await,
        None => Ok(None),
    }
}

/// Shows, sets or removes the number.
pub(crate) async fn limit(
    client: &LockClient,
    format: Format,
    args: &LimitArgs,
) -> Result<Exit, Failure> {
    let semaphore = semaphore(client, &args.name);
    match args.permits {
        Some(permits) => semaphore.set_limit(permits).await?,
        None if args.clear => semaphore.clear_limit().await?,
        None => {}
    }
    let report = Report {
        name: args.name.clone(),
        limit: semaphore.limit().await?,
    };
    write_one(format, &report, || match report.limit {
        Some(limit) => format!("`{}` has {limit} permits, set by an operator", args.name),
        None => format!("each caller names the permits of `{}`", args.name),
    })?;
    Ok(match report.limit {
        None if !args.changes() => Exit::No,
        _ => Exit::Done,
    })
}
