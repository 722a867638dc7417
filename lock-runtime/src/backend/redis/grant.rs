//! A grant as the server tells of it.

use std::time::Duration;

use lock_core::{
    fencing::FencingToken,
    lease::{CLAIM, Grant, Moment, less_drift},
    owner::OwnerId,
};

/// What the server says of a grant.
#[derive(Debug, Clone)]
pub(super) struct GrantSnapshot {
    /// The grant's own token, and its first member's.
    pub(super) first: u64,
    pub(super) owners: Vec<OwnerId>,
    pub(super) lease: Duration,
    /// The notification channel of the session that was told.
    pub(super) inbox: String,
    /// How long the grant is valid, from a moment known to lie before that.
    validity: Duration,
    after: Moment,
}

impl GrantSnapshot {
    /// Reads `token|lease|inbox|owner owner …`. `left` is what was left of it, in ms, when that was asked for.
    pub(super) fn told(grant: &str, left: u64, asked: Moment) -> Option<Self> {
        let mut fields = grant.split('|');
        let mut next = || fields.next();
        let (first, lease, inbox) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?);
        let owners = next()?.split(' ').map(|owner| owner.parse().ok());
        Some(Self {
            first,
            owners: owners.collect::<Option<_>>()?,
            lease: Duration::from_millis(lease),
            inbox: inbox.to_owned(),
            validity: Duration::from_millis(left),
            after: asked,
        })
    }

    /// Reads a grant that was pushed: it stands as a claim.
    pub(super) fn pushed(grant: &str, after: Moment) -> Option<Self> {
        let snapshot = Self::told(grant, 0, after)?;
        let validity = snapshot.lease.min(CLAIM);
        Some(Self {
            validity,
            ..snapshot
        })
    }

    /// The local deadline of the grant.
    pub(super) fn until(&self) -> Moment {
        self.after + less_drift(self.validity)
    }

    /// The time of which a member needs two thirds to enter: that of a claim, where less is left of the grant.
    pub(super) fn confirmed(&self) -> Duration {
        self.validity.max(self.lease.min(CLAIM))
    }

    /// The grant as its only owner has it.
    pub(super) fn sole(&self) -> Grant {
        Grant {
            token: FencingToken::new(self.first),
            valid_until: Some(self.until()),
            validity: self.confirmed(),
            queued: true,
        }
    }
}
