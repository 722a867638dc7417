//! The words at the end of grants and queue entries. The words tell people where a lock is held and where its waiters
//! run. No script parses them.
//!
//! - A queue entry ends with `|application/host/pid/function`. `function` is the path of the annotated function, or the
//!   label of the lock.
//! - A grant ends with the same words and `|since`, the server time at which the lock was granted: `seconds.micros`, as
//!   in the answer to `TIME`.
//!
//! Each word is percent-escaped and has a limited length, so that it contains no separator and adds little to a
//! command.

use std::{borrow::Cow, fmt, time::Duration};

use lock_core::{
    backend::{Caller, Holder},
    fencing::FencingToken,
};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::{
    backend::redis::protocol::grant::{LeaseWord, read_owner},
    background::Process,
};

/// The characters that have a meaning in a grant or a queue entry. Bytes outside ASCII are always escaped.
const SEPARATORS: &AsciiSet = &CONTROLS.add(b' ').add(b'|').add(b'/').add(b'%');

/// Returns a text in the form in which it is stored: percent-escaped, and only the end of a long text
/// ([`Caller::end_of`]).
pub(crate) fn word(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(Caller::end_of(text), SEPARATORS).into()
}

/// Returns the words that all callers of a client share: `application/host/pid`.
pub(crate) fn of_process(application: &str, process: &Process) -> String {
    let Process { host, pid } = process;
    format!("{}/{}/{pid}", word(application), word(host))
}

/// Parses `application/host/pid/function`.
pub(crate) fn caller(words: &str) -> Option<Caller> {
    let mut words = words.split('/').map(plain);
    let mut next = || words.next();
    let (application, host, pid, function) = (next()?, next()?, next()?, next()?);
    Some(Caller::new(
        &application,
        &host,
        pid.parse().ok()?,
        &function,
    ))
}

/// A server time in µs, which is written in the form `seconds.micros`.
pub(crate) struct Since(pub(crate) i128);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = u64::try_from(self.0).unwrap_or_default();
        write!(f, "{}.{}", micros / 1_000_000, micros % 1_000_000)
    }
}

/// Returns the time from `since`, a server time in the form `seconds.micros`, to `now`, a server time in µs.
fn elapsed(since: &str, now: i128) -> Option<Duration> {
    let (seconds, micros) = since.split_once('.')?;
    let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
    let since = i128::from(seconds) * 1_000_000 + i128::from(micros);
    let elapsed = u64::try_from((now - since).max(0)).ok()?;
    Some(Duration::from_micros(elapsed))
}

/// Parses the holder in a stored grant, for people. `now` is the server's time in µs.
pub(crate) fn read_holder(grant: &str, remaining: Option<Duration>, now: i128) -> Option<Holder> {
    let mut fields = grant.split('|');
    let mut next = || fields.next();
    let (token, lease, session_id, owners) = (next()?, next()?, next()?, next()?);
    let (words, since) = (next().unwrap_or_default(), next().unwrap_or_default());
    let mut holder = Holder::new(read_owner(owners.split(' ').next()?)?);
    holder.token = token.parse().ok().map(FencingToken::new);
    holder.remaining = remaining;
    if let Some(LeaseWord(lease, mode)) = LeaseWord::read(lease) {
        (holder.lease, holder.mode) = (Some(lease), mode);
    }
    holder.kept = session_id.is_empty();
    holder.held_for = elapsed(since, now);
    holder.caller = caller(words);
    Some(holder)
}

/// Returns the number of owners in a stored grant that hold the lock or wait for their turn. Returns 0 for a retained
/// grant.
pub(crate) fn members(grant: &str) -> usize {
    match grant.split('|').skip(2).take(2).collect::<Vec<_>>()[..] {
        [session_id, owners] if !session_id.is_empty() => owners.split(' ').count(),
        _ => 0,
    }
}

fn plain(word: &str) -> Cow<'_, str> {
    percent_decode_str(word).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_as_they_were_written() {
        for text in ["shop", "web-3.example.net", "a b|c/d%e\n", "größe", ""] {
            let process = Process {
                host: text.into(),
                pid: 4711,
            };
            let words = format!("{}/{}", of_process(text, &process), word(text));
            assert!(
                !words.contains(['|', ' ', '\n']) && words.is_ascii(),
                "{words}"
            );
            let caller = caller(&words).expect("the words are complete");
            let shown = text.replace('\n', "\u{fffd}");
            let texts = [caller.application, caller.host, caller.function];
            assert_eq!(texts, [&*shown; 3]);
            assert_eq!(caller.pid, 4711);
        }
    }

    #[test]
    fn incomplete_words_name_no_caller() {
        for words in ["", "shop", "shop/host", "shop/host/1", "shop/host/x/pay"] {
            assert_eq!(caller(words), None, "{words}");
        }
    }

    #[test]
    fn a_grant_of_the_future_is_no_time_old() {
        assert_eq!(Since(3_000_042).to_string(), "3.42");
        assert_eq!(
            elapsed("3.42", 3_002_542),
            Some(Duration::from_micros(2500))
        );
        assert_eq!(elapsed("3.42", 42), Some(Duration::ZERO));
        for unknown in ["", "3", "3.", ".42", "x.y"] {
            assert_eq!(elapsed(unknown, 500), None, "{unknown}");
        }
    }
}
