//! `lockctl list`: the locks that are held.

use clap::Args;
use futures_util::future::join_all;
use lock_runtime::{Caller, FencingToken, Holder, LockClient, LockError, LockKey, Mode, Status};
use serde::{Serialize, Serializer};
use wildmatch::WildMatch;

use crate::{
    exit::{Exit, Failure},
    output::{Format, List, Row, millis, people},
};

/// The number of locks whose states `list` requests at the same time. `list` sends one command for each lock.
const AT_A_TIME: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Selects keys: `*` stands for any text, `?` for one character. A pattern without `*` and `?` selects the keys
    /// that begin with the pattern
    #[arg(default_value = "*")]
    pattern: Pattern,
}

/// A pattern of keys.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    /// The pattern as the user wrote it.
    text: String,
    /// The text before the first wildcard. The server returns only keys that begin with this text.
    prefix: String,
    wild: WildMatch,
}

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        let prefix = text.split(['*', '?']).next().unwrap_or_default();
        let wild = if prefix.len() == text.len() {
            format!("{text}*")
        } else {
            text.to_owned()
        };
        Self {
            text: text.to_owned(),
            prefix: prefix.to_owned(),
            wild: WildMatch::new(&wild),
        }
    }
}

/// The process and the function of a call that holds a lock or waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Origin {
    application: String,
    host: String,
    pid: u32,
    /// The path of the annotated function, or the label of the lock. Empty if the call has neither.
    function: String,
}

impl From<&Caller> for Origin {
    fn from(caller: &Caller) -> Self {
        Self {
            application: caller.application.clone(),
            host: caller.host.clone(),
            pid: caller.pid,
            function: caller.function.clone(),
        }
    }
}

impl Origin {
    /// Returns a text such as ``shop@web-3 (pid 4711) `shop::orders::pay` ``. If the server does not store where the
    /// caller runs, the text shows the owner name.
    pub(crate) fn text(origin: Option<&Self>, owner: &str) -> String {
        let Some(origin) = origin else {
            return format!("owner {owner}");
        };
        let mut text = format!(
            "{}@{} (pid {})",
            origin.application, origin.host, origin.pid
        );
        if !origin.function.is_empty() {
            text.push_str(&format!(" `{}`", origin.function));
        }
        text
    }
}

/// Whether the hold of a lock that is taken has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Held,
    /// The hold has ended, and `hold_at_least` keeps the lock taken. Nobody works under the lock.
    Kept,
}

impl State {
    pub(crate) fn of(holder: &Holder) -> Self {
        if holder.kept { Self::Kept } else { Self::Held }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Kept => "kept",
        }
    }
}

/// A lock that is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Held {
    pub(crate) key: String,
    pub(crate) state: State,
    #[serde(serialize_with = "mode_word")]
    pub(crate) mode: Mode,
    /// The number of readers that hold the lock; 0 if a writer holds it. Callers of one process that share a grant count as
    /// one reader. The other fields describe the first reader.
    pub(crate) readers: usize,
    /// The number of permits that are taken; 0 if the lock is no semaphore. The other fields describe the first permit's holder.
    pub(crate) permits: u32,
    /// Where the holder runs. Absent if the server does not store this, as for a Redisson lock.
    pub(crate) caller: Option<Origin>,
    /// The time since the grant.
    pub(crate) held_for_ms: Option<u64>,
    /// The fencing token. Absent for a holder without a token, such as a Redisson lock.
    pub(crate) token: Option<u64>,
    pub(crate) lease_left_ms: Option<u64>,
    pub(crate) waiting: usize,
    pub(crate) owner: String,
}

/// Writes a mode as the word that the JSON contains.
fn mode_word<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match mode {
        Mode::Read => "read",
        Mode::Permits { .. } => "permits",
        _ => "write",
    })
}

/// Returns all holders of a lock: at most one writer, or several readers, or all who have permits.
pub(crate) fn holders(status: &Status) -> impl Iterator<Item = &Holder> {
    status.holder.iter().chain(&status.others)
}

/// Returns the number of permits that a holder has taken.
pub(crate) fn permits_of(holder: &Holder) -> u32 {
    match holder.mode {
        Mode::Permits { take, .. } => take,
        _ => 0,
    }
}

impl Held {
    /// Converts the status of a lock. Returns `None` if nobody holds the lock.
    pub(crate) fn of(key: &str, status: &Status) -> Option<Self> {
        let mut held = Self::by(key, status, status.holder.as_ref()?);
        // As long as one reader is at work, the lock is held.
        if holders(status).any(|holder| !holder.kept) {
            held.state = State::Held;
        }
        Some(held)
    }

    /// Describes a lock by one of its holders.
    pub(crate) fn by(key: &str, status: &Status, holder: &Holder) -> Self {
        Self {
            key: key.to_owned(),
            state: State::of(holder),
            mode: holder.mode,
            readers: match holder.mode {
                Mode::Read => holders(status).count(),
                _ => 0,
            },
            permits: holders(status).map(permits_of).sum(),
            caller: holder.caller.as_ref().map(Origin::from),
            held_for_ms: holder.held_for.map(millis),
            token: holder.token.map(FencingToken::get),
            lease_left_ms: holder.remaining.map(millis),
            waiting: status.waiters,
            owner: holder.owner.to_string(),
        }
    }

    /// Returns the state of the lock as readable text, such as `held`, `read by 3` or `3 permits`.
    pub(crate) fn state_text(&self) -> String {
        match (self.state, self.readers, self.permits) {
            (State::Held, 1.., _) => format!("read by {}", self.readers),
            (State::Held, _, 1) => "1 permit".to_owned(),
            (State::Held, _, 2..) => format!("{} permits", self.permits),
            (state, ..) => state.word().to_owned(),
        }
    }

    /// Returns where the holder runs, as readable text.
    pub(crate) fn holder_text(&self) -> String {
        Origin::text(self.caller.as_ref(), &self.owner)
    }
}

impl Row for Held {
    const TITLES: &'static [&'static str] = &[
        "KEY",
        "STATE",
        "HOLDER",
        "HELD FOR",
        "LEASE LEFT",
        "WAITING",
        "TOKEN",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.key.clone(),
            self.state_text(),
            self.holder_text(),
            time(self.held_for_ms),
            time(self.lease_left_ms),
            self.waiting.to_string(),
            self.token
                .map_or_else(|| "-".into(), |token| token.to_string()),
        ]
    }

    fn order(&self) -> &str {
        &self.key
    }
}

pub(crate) fn time(ms: Option<u64>) -> String {
    ms.map_or_else(
        || "-".into(),
        |ms| people(std::time::Duration::from_millis(ms)),
    )
}

/// Scans all locks, and passes the held locks whose keys match the pattern to `each`. An error that `each` returns ends
/// the scan.
pub(crate) async fn walk(
    client: &LockClient,
    pattern: &Pattern,
    mut each: impl FnMut(Vec<Held>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut scan = client.scan(pattern.prefix.as_str())?;
    while let Some(keys) = scan.next_page().await? {
        let selected: Vec<_> = keys
            .into_iter()
            .filter(|key| pattern.wild.matches(key.as_str()))
            .collect();
        for keys in selected.chunks(AT_A_TIME) {
            let found = join_all(keys.iter().map(|key| held(client, key))).await;
            let found: Result<Vec<_>, _> = found.into_iter().collect();
            each(found?.into_iter().flatten().collect())?;
        }
    }
    Ok(())
}

async fn held(client: &LockClient, key: &LockKey) -> Result<Option<Held>, LockError> {
    match client.lock(key.as_str()).status().await {
        Ok(status) => Ok(Held::of(key.as_str(), &status)),
        // The key looks like the name of a lock, but another program stores other data under it.
        Err(LockError::WrongLayout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn list(
    client: &LockClient,
    format: Format,
    args: &ListArgs,
) -> Result<Exit, Failure> {
    let mut list = List::new(format);
    walk(client, &args.pattern, |page| {
        for held in page {
            list.push(held)?;
        }
        list.flush()
    })
    .await?;
    if list.end()? == 0 && format == Format::Table {
        println_or_close(&match args.pattern.text.as_str() {
            "*" => "no lock is held".to_owned(),
            pattern => format!("no lock is held whose key matches {pattern:?}"),
        })?;
    }
    Ok(Exit::Done)
}

/// Writes a line to stdout.
pub(crate) fn println_or_close(line: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_wildcards_is_a_prefix() {
        let selects = |pattern: &str, key: &str| {
            let pattern = Pattern::from(pattern);
            key.starts_with(&pattern.prefix) && pattern.wild.matches(key)
        };
        assert!(selects("order:", "order:42"));
        assert!(selects("order:42", "order:42"));
        assert!(!selects("order:*:pay", "order:42"));
        assert!(selects("order:*:pay", "order:42:pay"));
        assert!(selects("*:42", "order:42"));
        assert!(!selects("order:?", "order:42"));
        assert!(selects("*", "{order:42}:pay"));
    }
}
