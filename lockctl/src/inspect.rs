//! `lockctl inspect`: the holder or the readers of one lock, and its queue.

use std::fmt::Write;

use clap::Args;
use lock_runtime::{FencingToken, Holder, LockClient, Mode, Status, Waiter};
use serde::Serialize;

use crate::{
    exit::{Exit, Failure},
    list::{Held, Origin, State, holders, time},
    output::{Format, millis, people, table, write_one},
};

/// The number of readers that the text shows. The JSON contains all readers that the server has named.
const READERS_SHOWN: usize = 20;

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
    /// The readers that hold the lock. Empty if a writer holds it.
    read_by: Vec<Reader>,
    waiting: usize,
    queue: Vec<Queued>,
}

#[derive(Serialize)]
struct Reader {
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
    let (status, waiters) =
        futures_util::future::join(lock.status(), lock.waiters(args.limit)).await;
    let (status, waiters) = (status?, waiters?);
    let report = Report {
        key: args.key.clone(),
        held: status.holder.is_some(),
        holder: Held::of(&args.key, &status),
        read_by: readers(&status),
        waiting: status.waiters,
        queue: waiters.iter().enumerate().map(queued).collect(),
    };
    write_one(format, &report, || text(&report, &waiters))?;
    Ok(if report.held { Exit::Done } else { Exit::No })
}

fn readers(status: &Status) -> Vec<Reader> {
    let readers = holders(status).filter(|holder| holder.mode == Mode::Read);
    let reader = |holder: &Holder| Reader {
        token: holder.token.map(FencingToken::get),
        state: State::of(holder),
        caller: holder.caller.as_ref().map(Origin::from),
        held_for_ms: holder.held_for.map(millis),
        lease_left_ms: holder.remaining.map(millis),
        owner: holder.owner.to_string(),
    };
    readers.map(reader).collect()
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
            if held.mode != Mode::Read {
                line("holder", &held.holder_text());
                line("held for", &time(held.held_for_ms));
                line("token", &token_text(held.token));
                line("lease left", &time(held.lease_left_ms));
                line("owner", &held.owner);
            }
        }
    }
    line("waiting", &report.waiting.to_string());
    text.truncate(text.trim_end().len());
    if !report.read_by.is_empty() {
        let _ = write!(text, "\n\n{}", reader_table(&report.read_by));
    }
    if !waiters.is_empty() {
        let _ = write!(text, "\n\n{}", queue_table(waiters));
    }
    text
}

fn token_text(token: Option<u64>) -> String {
    token.map_or_else(|| "none".to_owned(), |token| token.to_string())
}

fn reader_table(readers: &[Reader]) -> String {
    let rows = readers.iter().take(READERS_SHOWN).map(|reader| {
        let origin = Origin::text(reader.caller.as_ref(), &reader.owner);
        vec![
            token_text(reader.token),
            match reader.state {
                State::Held => origin,
                State::Kept => format!("kept after {origin}"),
            },
            time(reader.held_for_ms),
            time(reader.lease_left_ms),
            reader.owner.clone(),
        ]
    });
    let titles = ["TOKEN", "READER", "HELD FOR", "LEASE LEFT", "OWNER"];
    let text = table(&titles, rows);
    match readers.len().saturating_sub(READERS_SHOWN) {
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
