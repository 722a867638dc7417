//! `lockctl inspect`: the holder or the readers of one lock, and its queue.

use std::fmt::Write;

use clap::Args;
use futures_util::future::join3;
use lock_runtime::{FencingToken, Holder, LockClient, Status, Waiter};
use serde::Serialize;

use crate::{
    exit::{Exit, Failure},
    limit,
    list::{Held, Origin, State, holders, permits_of, time},
    output::{Format, millis, people, table, write_one},
};

/// The number of readers, or of holders of permits, that the text shows. The JSON contains all that the server has named.
const SHARERS_SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The key of the lock, or the name of the role
    key: String,
    /// How many waiters to show, from the head of the queue; at most 1000
    #[arg(long, default_value_t = 100, value_parser = at_most_1000)]
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
fn at_most_1000(text: &str) -> Result<usize, String> {
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
    /// The readers that hold the lock, or those who have its permits. Empty if a writer holds it.
    shared_by: Vec<Sharer>,
    /// The number of permits that an operator has set, if the lock is a semaphore.
    permits_limit: Option<u32>,
    waiting: usize,
    queue: Vec<Queued>,
}

#[derive(Serialize)]
struct Sharer {
    /// The number of permits; 0 for a reader.
    permits: u32,
    token: Option<u64>,
    state: State,
    caller: Option<Origin>,
    held_for_ms: Option<u64>,
    lease_left_ms: Option<u64>,
    owner: String,
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
    let (status, waiters, limit) = join3(
        lock.status(),
        lock.waiters(args.limit),
        limit::of_key(client, &args.key),
    )
    .await;
    let (status, waiters, limit) = (status?, waiters?, limit?);
    let report = Report {
        key: args.key.clone(),
        held: status.holder.is_some(),
        holder: Held::of(&args.key, &status),
        shared_by: sharers(&status),
        permits_limit: limit,
        waiting: status.waiters,
        queue: waiters.iter().enumerate().map(queued).collect(),
    };
    write_one(format, &report, || text(&report, &waiters))?;
    Ok(if report.held { Exit::Done } else { Exit::No })
}

fn sharers(status: &Status) -> Vec<Sharer> {
    let sharers = holders(status).filter(|holder| holder.mode.is_shared());
    let sharer = |holder: &Holder| Sharer {
        permits: permits_of(holder),
        token: holder.token.map(FencingToken::get),
        state: State::of(holder),
        caller: holder.caller.as_ref().map(Origin::from),
        held_for_ms: holder.held_for.map(millis),
        lease_left_ms: holder.remaining.map(millis),
        owner: holder.owner.to_string(),
    };
    sharers.map(sharer).collect()
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
            match held.state {
                State::Held => line("state", &held.state_text()),
                State::Kept => line(
                    "state",
                    "kept (the hold has ended; `hold_at_least` keeps the lock taken)",
                ),
            }
            if !held.mode.is_shared() {
                line("holder", &held.holder_text());
                line("held for", &time(held.held_for_ms));
                line("token", &token_text(held.token));
                line("lease left", &time(held.lease_left_ms));
                line("owner", &held.owner);
            }
        }
    }
    if let Some(limit) = report.permits_limit {
        line("limit", &format!("{limit} permits, set by an operator"));
    }
    line("waiting", &report.waiting.to_string());
    text.truncate(text.trim_end().len());
    if !report.shared_by.is_empty() {
        let _ = write!(text, "\n\n{}", sharer_table(&report.shared_by));
    }
    if !waiters.is_empty() {
        let _ = write!(text, "\n\n{}", queue_table(waiters));
    }
    text
}

fn token_text(token: Option<u64>) -> String {
    token.map_or_else(|| "none".to_owned(), |token| token.to_string())
}

fn sharer_table(sharers: &[Sharer]) -> String {
    let rows = sharers.iter().take(SHARERS_SHOWN).map(|sharer| {
        let origin = Origin::text(sharer.caller.as_ref(), &sharer.owner);
        vec![
            token_text(sharer.token),
            match (sharer.state, sharer.permits) {
                (State::Kept, _) => format!("kept after {origin}"),
                (State::Held, 0) => origin,
                (State::Held, permits) => format!("{permits} of the permits: {origin}"),
            },
            time(sharer.held_for_ms),
            time(sharer.lease_left_ms),
            sharer.owner.clone(),
        ]
    });
    let titles = ["TOKEN", "HOLDER", "HELD FOR", "LEASE LEFT", "OWNER"];
    let text = table(&titles, rows);
    match sharers.len().saturating_sub(SHARERS_SHOWN) {
        0 => text,
        more => format!("{text}\nand {more} more"),
    }
}

fn queue_table(waiters: &[Waiter]) -> String {
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
    table(&titles, rows)
}
