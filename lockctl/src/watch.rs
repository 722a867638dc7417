//! `lockctl watch`: shows the held locks and their changes.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    time::{Duration, SystemTime},
};

use clap::Args;
use lock_runtime::{LockClient, Mode};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    exit::{Exit, Failure, complain},
    list::{Held, Pattern, State, println_or_close, walk},
    output::{Format, Row, table},
};

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Selects keys, as for `list`
    #[arg(default_value = "*")]
    pattern: Pattern,
    /// The time from one look at the server to the next. A look reads all locks. If a look takes more than half of this
    /// time, the pause after the look is as long as the look
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// Ends after this number of looks at the server
    #[arg(long)]
    looks: Option<u64>,
}

/// How often `watch` checks whether a pipe that it writes to is closed.
const PIPE_CHECK: Duration = Duration::from_secs(1);

/// A change of a lock between two looks at the server.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change<'a> {
    at: String,
    change: Kind,
    #[serde(flatten)]
    lock: &'a Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// The lock was already held at the first look.
    Held,
    Acquired,
    /// The lock was passed from one holder to the next. A reader that comes or goes beside other readers is no change.
    Passed,
    /// The hold has ended, and `hold_at_least` keeps the lock taken.
    Kept,
    /// The number of waiters has changed.
    Waiting,
    Released,
}

type Seen = BTreeMap<String, Held>;

pub(crate) async fn watch(
    client: &LockClient,
    format: Format,
    args: &WatchArgs,
) -> Result<Exit, Failure> {
    let redraws = format == Format::Table && io::stdout().is_terminal();
    let mut last: Option<Seen> = None;
    let mut look = 0;
    loop {
        let begun = Instant::now();
        let mut now = Seen::new();
        let walked = walk(client, &args.pattern, |page| {
            now.extend(page.into_iter().map(|held| (held.key.clone(), held)));
            Ok(())
        });
        match walked.await {
            Ok(()) => {
                if redraws {
                    draw(&now)?;
                } else {
                    write_changes(format, last.as_ref(), &now)?;
                }
                last = Some(now);
            }
            // The server is possibly restarting, or a replica replaces it. The next look can then succeed.
            Err(Failure::Text(Exit::Unreachable, text)) if last.is_some() => complain(&text),
            Err(failure) => return Err(failure),
        }
        look += 1;
        if args.looks.is_some_and(|looks| look >= looks) {
            return Ok(Exit::Done);
        }
        let took = begun.elapsed();
        let next = begun + args.interval.max(2 * took);
        while Instant::now() < next {
            tokio::time::sleep_until(next.min(Instant::now() + PIPE_CHECK)).await;
            if is_output_closed() {
                return Err(Failure::OutputClosed);
            }
        }
    }
}

/// Returns whether the output is a pipe whose reader has closed it.
fn is_output_closed() -> bool {
    let output = io::stdout();
    let mut polled = [PollFd::new(output.as_fd(), PollFlags::empty())];
    let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut polled, PollTimeout::ZERO).is_ok()
        && polled[0]
            .revents()
            .is_some_and(|seen| seen.intersects(closed))
}

fn write_changes(format: Format, last: Option<&Seen>, now: &Seen) -> Result<(), Failure> {
    let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    for (kind, lock) in changes(last, now) {
        let change = Change {
            at: at.clone(),
            change: kind,
            lock,
        };
        let line = match format {
            Format::Table => format!(
                "{at} {kind:<8} {} {}token={} waiting={} holder={}",
                lock.key,
                match lock.mode {
                    Mode::Read => format!("mode=read readers={} ", lock.readers),
                    _ => String::new(),
                },
                lock.token
                    .map_or_else(|| "-".into(), |token| token.to_string()),
                lock.waiting,
                lock.holder_text(),
                kind = kind.word(),
            ),
            // The list of changes has no end, so both JSON formats write one document in each line.
            Format::Json | Format::Jsonl => serde_json::to_string(&change)?,
        };
        println_or_close(&line)?;
    }
    Ok(())
}

fn changes<'a>(last: Option<&'a Seen>, now: &'a Seen) -> Vec<(Kind, &'a Held)> {
    let mut changes = Vec::new();
    let before = |key: &String| last.and_then(|last| last.get(key));
    let gone = last
        .into_iter()
        .flatten()
        .filter(|(key, _)| !now.contains_key(*key));
    changes.extend(gone.map(|(_, held)| (Kind::Released, held)));
    for (key, held) in now {
        let kind = match before(key) {
            None if held.state == State::Kept => Kind::Kept,
            None if last.is_none() => Kind::Held,
            None => Kind::Acquired,
            Some(before) if is_passed(before, held) => Kind::Passed,
            Some(before) if before.state != held.state => match held.state {
                State::Kept => Kind::Kept,
                State::Held => Kind::Acquired,
            },
            Some(before) if before.waiting != held.waiting => Kind::Waiting,
            Some(_) => continue,
        };
        changes.push((kind, held));
    }
    changes
}

/// Returns whether a lock has another holder than before. Readers that follow readers share the lock.
fn is_passed(before: &Held, now: &Held) -> bool {
    let is_read = before.mode == Mode::Read && now.mode == Mode::Read;
    !is_read && (before.token, &before.owner) != (now.token, &now.owner)
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Acquired => "acquired",
            Self::Passed => "passed",
            Self::Kept => "kept",
            Self::Waiting => "waiting",
            Self::Released => "released",
        }
    }
}

/// Draws the table of locks over the previous table. Shows only as many locks as fit on the terminal.
fn draw(now: &Seen) -> Result<(), Failure> {
    let height = terminal_size::terminal_size().map_or(24, |(_, height)| usize::from(height.0));
    let shown = height.saturating_sub(4).max(1);
    let rows = now.values().take(shown).map(Row::cells);
    let mut text = table(Held::TITLES, rows);
    text.push_str(&format!("\n\n{} held", now.len()));
    if now.len() > shown {
        text.push_str(&format!(", {} of them not shown", now.len() - shown));
    }
    let mut out = io::stdout().lock();
    // Moves the cursor to the top, clears the rest of each line, and clears all lines below the table.
    write!(
        out,
        "\x1b[H{}\x1b[J",
        text.replace('\n', "\x1b[K\n") + "\x1b[K\n"
    )?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(key: &str, token: u64, waiting: usize) -> (String, Held) {
        taken(key, token, waiting, State::Held)
    }

    fn taken(key: &str, token: u64, waiting: usize, state: State) -> (String, Held) {
        let held = Held {
            key: key.to_owned(),
            state,
            mode: Mode::Write,
            readers: 0,
            permits: 0,
            caller: None,
            held_for_ms: None,
            token: Some(token),
            lease_left_ms: Some(1),
            waiting,
            owner: format!("owner {token}"),
        };
        (key.to_owned(), held)
    }

    #[test]
    fn each_kind_of_change_is_told_once() {
        let first = Seen::from([
            held("a", 1, 0),
            held("b", 2, 0),
            held("c", 3, 1),
            held("d", 4, 0),
        ]);
        let second = Seen::from([
            held("b", 5, 0),
            held("c", 3, 2),
            taken("d", 4, 0, State::Kept),
            held("e", 6, 0),
            taken("f", 7, 0, State::Kept),
        ]);
        let told = |last, now| {
            let changes = changes(last, now);
            changes
                .iter()
                .map(|(kind, held)| (*kind, held.key.clone()))
                .collect::<Vec<_>>()
        };
        let all = ["a", "b", "c", "d"].map(|key| (Kind::Held, key.to_owned()));
        assert_eq!(told(None, &first), all);
        let expected = [
            (Kind::Released, "a"),
            (Kind::Passed, "b"),
            (Kind::Waiting, "c"),
            (Kind::Kept, "d"),
            (Kind::Acquired, "e"),
            (Kind::Kept, "f"),
        ];
        assert_eq!(
            told(Some(&first), &second),
            expected.map(|(kind, key)| (kind, key.to_owned()))
        );
        assert_eq!(told(Some(&second), &second), []);
    }

    #[test]
    fn readers_that_come_and_go_pass_nothing() {
        let read = |token, readers, state| {
            let (key, mut held) = taken("a", token, 0, state);
            (held.mode, held.readers) = (Mode::Read, readers);
            Seen::from([(key, held)])
        };
        let written = Seen::from([held("a", 9, 0)]);
        let kinds = |last: &Seen, now: &Seen| -> Vec<Kind> {
            let changes = changes(Some(last), now);
            changes.iter().map(|(kind, _)| *kind).collect()
        };
        let first = read(1, 1, State::Held);
        assert_eq!(kinds(&first, &read(1, 2, State::Held)), []);
        assert_eq!(kinds(&first, &read(2, 1, State::Held)), []);
        assert_eq!(kinds(&first, &written), [Kind::Passed]);
        assert_eq!(kinds(&written, &first), [Kind::Passed]);
        let kept = read(1, 1, State::Kept);
        assert_eq!(kinds(&first, &kept), [Kind::Kept]);
        assert_eq!(kinds(&kept, &read(1, 2, State::Held)), [Kind::Acquired]);
    }
}
