//! Reads a grant as the server tells of it. `native/grant_next.lua` has the format.
//!
//! A session has an id, a random number that the entries of its callers in a queue name and nothing else shows. What a
//! script tells it goes to the channel that is named by the SHA-1 of the id, and is signed with the id: whoever may list
//! channels, listen and publish, but read no keys, can neither forge a grant nor change one. A message that is repeated
//! tells its owners nothing new: each keeps the newest grant that it was told of.

use std::time::Duration;

use lock_core::{
    fencing::FencingToken,
    key::LockName,
    lease::{CLAIM, Grant, Moment, less_drift},
    owner::OwnerId,
};

/// What the server says of a grant.
#[derive(Debug, Clone)]
pub(crate) struct GrantSnapshot {
    /// The grant's own token, and its first member's.
    pub(crate) first: u64,
    pub(crate) owners: Vec<OwnerId>,
    pub(crate) lease: Duration,
    /// The session that was told.
    pub(crate) session_id: String,
    /// Whether it was pushed, and not the answer to a question.
    pub(crate) is_pushed: bool,
    /// How long the grant is valid, from a moment known to lie before that.
    validity: Duration,
    after: Moment,
}

impl GrantSnapshot {
    /// Reads `token|lease|session_id|owner owner …`. `left` is what was left of it, in ms, when that was asked for.
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

    /// A grant that was pushed: it stands as a claim.
    pub(crate) fn pushed(
        first: &str,
        lease: &str,
        owners: &str,
        session_id: &str,
        after: Moment,
    ) -> Option<Self> {
        let owners = owners.split(' ').map(|owner| owner.parse().ok());
        let lease = Duration::from_millis(lease.parse().ok()?);
        Some(Self {
            first: first.parse().ok()?,
            owners: owners.collect::<Option<_>>()?,
            lease,
            session_id: session_id.to_owned(),
            validity: lease.min(CLAIM),
            is_pushed: true,
            after,
        })
    }

    /// The local deadline of the grant.
    pub(crate) fn until(&self) -> Moment {
        self.after + less_drift(self.validity)
    }

    /// The time of which a member needs two thirds to enter: that of a claim, where less is left of the grant.
    pub(crate) fn confirmed(&self) -> Duration {
        self.validity.max(self.lease.min(CLAIM))
    }

    /// The grant as its only owner has it.
    pub(crate) fn sole(&self) -> Grant {
        Grant {
            token: FencingToken::new(self.first),
            valid_until: Some(self.until()),
            validity: self.confirmed(),
            queued: true,
        }
    }
}

/// The notification channel of a session.
pub(crate) fn channel(session_id: &str) -> String {
    format!("lock:session:{}", sha1(&[session_id]))
}

fn sha1(parts: &[&str]) -> String {
    let mut sha1 = sha1_smol::Sha1::new();
    parts.iter().for_each(|part| sha1.update(part.as_bytes()));
    sha1.digest().to_string()
}

/// What a script told a session.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// The lock of this name is free, and nobody queues.
    Free(&'a str),
    /// The owners hold the lock of this name now, each in its turn.
    Granted(LockName, GrantSnapshot),
}

impl<'a> Message<'a> {
    /// Reads `free|name`, or a signed grant, `signature|token|lease|owner owner …|name`. `None` for what no script has written.
    pub(crate) fn read(payload: &'a str, session_id: &str, after: Moment) -> Option<Self> {
        let (signature, told) = payload.split_once('|')?;
        if signature == "free" {
            return Some(Self::Free(told));
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
