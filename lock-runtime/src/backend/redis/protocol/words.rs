//! The words in grants and queue entries that tell people where a lock is held and where its waiters run. No script
//! decides by these words.
//!
//! - The id of a session ends with the words of its process: `…/application/host/pid`.
//! - A queue entry ends with `|function`: the path of the annotated function, or the label of the lock.
//! - A grant ends with `|function|since`. `since` is the server time at which the lock was granted, in µs.
//!
//! Each word is percent-escaped and has a limited length, so that it contains no separator and adds little to a command.

use std::{fmt, time::Duration};

use lock_core::{
    backend::{Caller, Holder},
    fencing::FencingToken,
};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::{backend::redis::protocol::grant::read_owner, background::Process};

/// The characters that have a meaning in a grant, a queue entry or a session id. Bytes outside ASCII are always escaped.
const SEPARATORS: &AsciiSet = &CONTROLS.add(b' ').add(b'|').add(b'/').add(b'%');
/// The longest word, in bytes before escaping.
const LONGEST: usize = 64;

/// A word as it is stored: escaped, and no longer than [`LONGEST`]. A longer word loses its beginning, because the last
/// parts of a function's path and of a host's name are not the same for all callers.
pub(crate) struct Word<'a>(pub(crate) &'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut start = self.0.len().saturating_sub(LONGEST);
        while !self.0.is_char_boundary(start) {
            start += 1;
        }
        utf8_percent_encode(&self.0[start..], SEPARATORS).fmt(f)
    }
}

/// Returns the id of a session: a secret, and the words of the process in which the session runs.
pub(crate) fn session_id(secret: u128, application: &str, process: &Process) -> String {
    let Process { host, pid } = process;
    format!("{secret:032x}/{}/{}/{pid}", Word(application), Word(host))
}

/// Returns where a caller of this session runs. Returns `None` if the session's id contains no words, as in a grant that
/// is only retained.
pub(crate) fn caller(session_id: &str, function: &str) -> Option<Caller> {
    let mut words = session_id.split('/').skip(1);
    let mut next = || words.next().map(plain);
    Some(Caller {
        application: next()?,
        host: next()?,
        pid: next()?.parse().ok()?,
        function: plain(function),
    })
}

/// Returns the time between two server times in µs.
fn elapsed(since: &str, now: i128) -> Option<Duration> {
    let since: u64 = since.parse().ok()?;
    let micros = u64::try_from((now - i128::from(since)).max(0)).ok()?;
    Some(Duration::from_micros(micros))
}

/// Parses the holder in a stored grant, for people. `now` is the server's time in µs.
pub(crate) fn read_holder(grant: &str, remaining: Option<Duration>, now: i128) -> Option<Holder> {
    let mut fields = grant.split('|');
    let mut next = || fields.next();
    let (token, _, session_id, owners) = (next()?, next()?, next()?, next()?);
    let (function, since) = (next().unwrap_or_default(), next().unwrap_or_default());
    Some(Holder {
        owner: read_owner(owners.split(' ').next()?)?,
        token: token.parse().ok().map(FencingToken::new),
        remaining,
        held_for: elapsed(since, now),
        caller: caller(session_id, function),
    })
}

/// Returns the number of owners in a stored grant that hold the lock or wait for their turn. A retained grant has none.
pub(crate) fn members(grant: &str) -> usize {
    match grant.split('|').skip(2).take(2).collect::<Vec<_>>()[..] {
        [session_id, owners] if !session_id.is_empty() => owners.split(' ').count(),
        _ => 0,
    }
}

fn plain(word: &str) -> String {
    percent_decode_str(word).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(host: &str) -> Process {
        Process {
            host: host.into(),
            pid: 4711,
        }
    }

    #[test]
    fn words_read_back_as_they_were_written() {
        for word in ["shop", "web-3.example.net", "a b|c/d%e\n", "größe", ""] {
            let id = session_id(7, word, &process(word));
            assert!(!id.contains(['|', ' ', '\n']) && id.is_ascii(), "{id}");
            let function = Word(word).to_string();
            assert!(!function.contains(['|', ' ', '/']), "{function}");
            let caller = caller(&id, &function).expect("the id has words");
            assert_eq!(
                [&*caller.application, &*caller.host, &*caller.function],
                [word; 3]
            );
            assert_eq!(caller.pid, 4711);
        }
    }

    #[test]
    fn a_long_word_keeps_its_end() {
        let long = format!("{}::pay", "é".repeat(100));
        let word = plain(&Word(&long).to_string());
        assert!(word.len() <= LONGEST && word.len() > LONGEST - 2, "{word}");
        assert!(word.ends_with("é::pay"), "{word}");
    }

    #[test]
    fn a_session_without_words_has_no_caller() {
        for id in [
            "",
            "0123",
            "0123/shop",
            "0123/shop/host",
            "0123/shop/host/x",
        ] {
            assert_eq!(caller(id, "pay"), None, "{id}");
        }
    }

    #[test]
    fn a_grant_of_the_future_is_no_time_old() {
        assert_eq!(elapsed("1000", 3500), Some(Duration::from_micros(2500)));
        assert_eq!(elapsed("1000", 500), Some(Duration::ZERO));
        assert_eq!(elapsed("", 500), None);
    }
}
