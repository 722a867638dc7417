//! `lockctl inspect`: the holder and the queue of one lock.

use std::fmt::Write;

use clap::Args;
use lock_runtime::{LockClient, Waiter};
use serde::Serialize;

use crate::{
    exit::{Exit, Failure},
    list::{Held, Origin, State, time},
    output::{Format, millis, people, table, write_one},
};

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The key of the lock, or the name of the role
    key: String,
    /// How many waiters to show, from the head of the queue; at most 1000
    #[arg(long, default_value_t = 100, value_parser = limit)]
    limit: usize,
}

impl InspectArgs {
    /// Returns the arguments for the lock of the role with this name.
    pub(crate) fn of_leader(&self) -> Self {
        Self {
            key: format!("leader:{}", self.key),
            limit: self.limit,
        }
    }
}

/// Parses the number of waiters to show.
fn limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(limit) if limit <= 1000 => Ok(limit),
        _ => Err("a whole number of at most 1000 is expected".to_owned()),
    }
}

#[derive(Serialize)]
struct Report {
    key: String,
    held: bool,
    holder: Option<Held>,
    waiting: usize,
    queue: Vec<Queued>,
}

#[derive(Serialize)]
struct Queued {
    position: usize,
    caller: Option<Origin>,
    owner: String,
    session: String,
    queued_ms: u64,
    gives_up_in_ms: u64,
}

pub(crate) async fn inspect(
    client: &LockClient,
    format: Format,
    args: &InspectArgs,
) -> Result<Exit, Failure> {
    let lock = client.lock(&args.key);
    let (status, waiters) =
        futures_util::future::join(lock.status(), lock.waiters(args.limit)).await;
    let (status, waiters) = (status?, waiters?);
    let report = Report {
        key: args.key.clone(),
        held: status.holder.is_some(),
        holder: Held::of(&args.key, &status),
        waiting: status.waiters,
        queue: waiters.iter().enumerate().map(queued).collect(),
    };
    write_one(format, &report, || text(&report, &waiters))?;
    Ok(if report.held { Exit::Done } else { Exit::No })
}

fn queued((index, waiter): (usize, &Waiter)) -> Queued {
    Queued {
        position: index + 1,
        caller: waiter.caller.as_ref().map(Origin::from),
        owner: waiter.owner.to_string(),
        session: waiter.session.clone(),
        queued_ms: millis(waiter.queued_for),
        gives_up_in_ms: millis(waiter.remaining),
    }
}

fn text(report: &Report, waiters: &[Waiter]) -> String {
    let mut text = format!("key         {}\n", report.key);
    let mut line = |title: &str, value: &str| {
        let _ = writeln!(text, "{title:<12}{value}");
    };
    match &report.holder {
        // A key can contain these characters, but the user has possibly meant a pattern.
        None if report.key.contains(['*', '?']) => line(
            "state",
            "free (`inspect` takes one key; `lockctl list` takes a pattern)",
        ),
        None => line("state", "free"),
        Some(held) => {
            line(
                "state",
                match held.state {
                    State::Held => "held",
                    State::Kept => {
                        "kept (the hold has ended; `hold_at_least` keeps the lock taken)"
                    }
                },
            );
            line("holder", &held.holder_text());
            line("held for", &time(held.held_for_ms));
            let token = held.token.map(|token| token.to_string());
            line("token", token.as_deref().unwrap_or("none"));
            line("lease left", &time(held.lease_left_ms));
            line("owner", &held.owner);
        }
    }
    line("waiting", &report.waiting.to_string());
    if waiters.is_empty() {
        text.truncate(text.trim_end().len());
        return text;
    }
    let rows = waiters.iter().enumerate().map(|(index, waiter)| {
        let origin = waiter.caller.as_ref().map(Origin::from);
        vec![
            (index + 1).to_string(),
            Origin::text(origin.as_ref(), &waiter.owner.to_string()),
            people(waiter.queued_for),
            people(waiter.remaining),
            waiter.owner.to_string(),
        ]
    });
    let titles = ["#", "WAITER", "HAS WAITED", "GIVES UP IN", "OWNER"];
    let _ = write!(text, "\n{}", table(&titles, rows));
    text
}
