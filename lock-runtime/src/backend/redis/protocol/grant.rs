//! Parses the grants that the server describes in messages and in answers. `native/grant_next.lua` documents the format
//! of a grant.
//!
//! Each session has a random id, which begins like the ids of the other sessions of its process. On the server, the id of
//! a session is stored only in queue entries, grants and claims. Scripts notify a session on the channel whose name
//! contains the SHA-1 of the session id, and sign each message about a grant with the session id. An attacker who can list
//! channels, subscribe and publish, but cannot read keys, can neither forge nor change a message about a grant. A repeated
//! message about a grant has no effect, because each owner remembers the newest grant of which it was notified.

use std::{fmt, time::Duration};

use lock_core::{
    fencing::FencingToken,
    key::LockName,
    lease::{CLAIM, Grant, Moment, less_drift},
    options::Mode,
    owner::OwnerId,
};
use uuid::Uuid;

/// The length of a lease in ms, followed by the mode: `r` if the caller reads, `pK/N` if it takes K of N permits.
pub(crate) struct LeaseWord(pub(crate) Duration, pub(crate) Mode);

impl LeaseWord {
    /// Parses the word.
    pub(crate) fn read(word: &str) -> Option<Self> {
        let (millis, mode) = match word.find(|char: char| !char.is_ascii_digit()) {
            None => (word, Mode::Write),
            Some(at) => match word.split_at(at) {
                (millis, "r") => (millis, Mode::Read),
                (millis, permits) => {
                    let (take, of) = permits.strip_prefix('p')?.split_once('/')?;
                    let (take, of) = (take.parse().ok()?, of.parse().ok()?);
                    (millis, Mode::Permits { take, of })
                }
            },
        };
        Some(Self(Duration::from_millis(millis.parse().ok()?), mode))
    }
}

impl fmt::Display for LeaseWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_nanos().div_ceil(1_000_000))?;
        match self.1 {
            Mode::Read => f.write_str("r"),
            Mode::Permits { take, of } => write!(f, "p{take}/{of}"),
            _ => Ok(()),
        }
    }
}

/// A grant, as described in a message or in an answer of the server.
#[derive(Debug, Clone)]
pub(crate) struct GrantSnapshot {
    /// The fencing token of the grant, which is also the token of the cohort's first member.
    pub(crate) first: u64,
    pub(crate) owners: Vec<OwnerId>,
    pub(crate) lease: Duration,
    /// Which other callers can be inside the lock.
    pub(crate) mode: Mode,
    /// The id of the session to which the lock was granted.
    pub(crate) session_id: String,
    /// True if the grant came in a message, and false if it came in the answer to a request.
    pub(crate) is_pushed: bool,
    /// The time for which the grant is valid, counted from `after`.
    validity: Duration,
    /// A local moment before the server made the grant, or before the server read the grant for an answer.
    after: Moment,
}

impl GrantSnapshot {
    /// Parses `token|lease|session_id|owner owner …|words|since`. `left` is the time left of the grant in ms, counted
    /// from `asked`, the moment at which the request was sent. Returns `None` if the text has another format.
    pub(crate) fn parse(grant: &str, left: u64, asked: Moment) -> Option<Self> {
        let mut fields = grant.split('|');
        let mut next = || fields.next();
        let (first, lease, session_id, owners) = (next()?, next()?, next()?, next()?);
        Self::pushed(first, lease, owners, session_id, asked).map(|snapshot| Self {
            validity: Duration::from_millis(left),
            is_pushed: false,
            ..snapshot
        })
    }

    /// Builds the snapshot of a grant that came in a message. Until the session confirms such a grant, the grant is
    /// valid for a claim, or for its lease if the lease is shorter.
    pub(crate) fn pushed(
        first: &str,
        lease: &str,
        owners: &str,
        session_id: &str,
        after: Moment,
    ) -> Option<Self> {
        let owners = owners.split(' ').map(read_owner);
        let LeaseWord(lease, mode) = LeaseWord::read(lease)?;
        Some(Self {
            first: first.parse().ok()?,
            owners: owners.collect::<Option<_>>()?,
            lease,
            mode,
            session_id: session_id.to_owned(),
            validity: lease.min(CLAIM),
            is_pushed: true,
            after,
        })
    }

    /// Returns a moment at which the server had not sent this description of the grant yet.
    pub(crate) fn after(&self) -> Moment {
        self.after
    }

    /// Returns the local deadline of the grant.
    pub(crate) fn until(&self) -> Moment {
        self.after + less_drift(self.validity)
    }

    /// Returns the validity of the grant. If the validity is shorter than a claim, returns the length of a claim, or
    /// the lease if the lease is shorter than a claim. A member can take its turn only while at least two thirds of the
    /// returned time are left.
    pub(crate) fn confirmed(&self) -> Duration {
        self.validity.max(self.lease.min(CLAIM))
    }

    /// Converts the snapshot of a grant with a single owner into the grant that this owner receives.
    pub(crate) fn sole(&self) -> Grant {
        Grant {
            token: FencingToken::new(self.first),
            valid_until: Some(self.until()),
            validity: self.confirmed(),
            queued: true,
            handoff: None,
        }
    }
}

/// Parses an owner name. Returns `None` for any other text.
pub(crate) fn read_owner(text: &str) -> Option<OwnerId> {
    let bits = Uuid::try_parse(text).ok()?.as_u128();
    Some(OwnerId::from_u128(bits))
}

/// Returns the notification channel of a session.
pub(crate) fn channel(session_id: &str) -> String {
    format!("lock:session:{}", sha1(&[session_id]))
}

/// Returns a short name for a session: the first eight hex digits in the name of the session's channel. The short name
/// does not reveal the session id.
pub(crate) fn short_name(session_id: &str) -> String {
    sha1(&[session_id])[..8].to_owned()
}

fn sha1(parts: &[&str]) -> String {
    let mut sha1 = sha1_smol::Sha1::new();
    parts.iter().for_each(|part| sha1.update(part.as_bytes()));
    sha1.digest().to_string()
}

/// A message from a script to a session.
#[derive(Debug)]
pub(crate) enum Message {
    /// A script counts whether the session is listening.
    Free,
    /// The lock of this name was granted to the owners in the snapshot, who hold it one after another.
    Granted(LockName, GrantSnapshot),
}

impl Message {
    /// Parses `free|name`, or a signed grant: `signature|token|lease|owner owner …|name`. Returns `None` for any other
    /// payload, and for a grant that is not signed with `session_id`.
    pub(crate) fn read(payload: &str, session_id: &str, after: Moment) -> Option<Self> {
        let (signature, told) = payload.split_once('|')?;
        if signature == "free" {
            return Some(Self::Free);
        }
        if signature != sha1(&[session_id, told, session_id]) {
            return None;
        }
        let mut fields = told.splitn(4, '|');
        let mut next = || fields.next();
        let (first, lease, owners, name) = (next()?, next()?, next()?, next()?);
        let grant = GrantSnapshot::pushed(first, lease, owners, session_id, after)?;
        Some(Self::Granted(LockName::stored(name), grant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "0000000000000000000000000000000a";

    #[test]
    fn an_owner_reads_back_as_it_was_written() {
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef] {
            let owner = OwnerId::from_u128(bits);
            assert_eq!(read_owner(&owner.to_string()), Some(owner));
        }
        for text in ["", "a", "not hex", &"é".repeat(16), &"a".repeat(33)] {
            assert_eq!(read_owner(text), None, "{text}");
        }
    }

    #[test]
    fn a_grant_that_is_not_signed_with_the_session_id_is_not_read() {
        let told = format!("7|30000|{OWNER}|{{lock:a|b}}");
        let after = Moment::new(Duration::ZERO);
        let signed =
            |session_id: &str| format!("{}|{told}", sha1(&[session_id, &told, session_id]));
        let Some(Message::Granted(name, grant)) = Message::read(&signed("mine"), "mine", after)
        else {
            panic!("it is signed");
        };
        assert_eq!(name.as_str(), "{lock:a|b}");
        assert_eq!((grant.first, grant.session_id.as_str()), (7, "mine"));
        let changed = signed("mine").replace("|7|", "|8|");
        let longer = format!("{}|30000|{OWNER}|x", signed("mine"));
        for forged in [
            signed("another"),
            changed,
            longer,
            told.clone(),
            String::new(),
        ] {
            assert!(Message::read(&forged, "mine", after).is_none(), "{forged}");
        }
    }
}
