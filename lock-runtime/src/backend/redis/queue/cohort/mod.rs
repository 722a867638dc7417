//! A cohort: neighbours in the queue, all of one process, that share one grant. The process passes the turn from one to
//! the next in memory, in the order of the queue, and releases the grant once, at the end. A waiter that is granted a
//! lock alone is a cohort of one.
//!
//! This file only decides: no I/O, no clock, no tokio. [`cohort_registry`](super::cohort_registry) drives it.
//!
//! # Rules
//! 1. A turn is `Offered` to one member, or that member is `Inside`. Nobody else has it.
//! 2. A member enters by one local transition, at the instant of its poll. Its offer still has to stand, and enough of
//!    the confirmed time has to be left. Nothing else lets a member in, not even an answer of the server.
//! 3. An answer of the server counts for the member that had the turn when the request was sent. It updates the grant
//!    only if that member still has the turn; otherwise it is dropped.
//! 4. The engine passes on an offer that is not taken within a claim; sooner if the member has missed offers before.

use std::{collections::VecDeque, ops::Range, time::Duration};

use lock_core::{
    fencing::FencingToken,
    lease::{Grant, Moment, claim_after, less_drift},
    owner::OwnerId,
};

use crate::backend::redis::protocol::grant::GrantSnapshot;

#[cfg(test)]
mod tests;

/// One member's turn. Its token is its generation, too: no two turns of a lock have the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Turn {
    pub(crate) token: u64,
    pub(crate) owner: OwnerId,
}

/// The state of the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// The member may enter, and has not entered yet.
    Offered { until: Moment },
    /// The member is inside.
    Inside,
    /// The member has left, and the lock stays taken for a while.
    Retained,
    /// All members have had their turns, or the server has lost the grant. Kept until the release is confirmed, because
    /// the release names the grant by its first token.
    Ended,
    /// The release is confirmed. Kept while callers wait for the lock: messages about this grant may still arrive.
    Released,
    /// The local deadline has passed, and the remaining members queue again. If the server still has the grant, they
    /// share it again. Kept for the member that was inside.
    Suspended,
}

/// The answer to a member that wants to enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seat {
    /// The member is inside.
    Inside(Grant),
    /// The offer stands, but too little is left of the confirmed time: the engine has to renew the grant first.
    Unconfirmed,
    /// The offer has been passed on, or the grant is lost.
    Missed,
}

/// The answer to a member that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The turn is free: offer it to the next member.
    Free,
    /// The cohort has ended, and its release is not confirmed.
    Ended,
    /// The member had lost its turn.
    Stale,
    /// The member had lost its turn, and the cohort can be forgotten.
    Forgotten,
}

/// The server's answer to a renewal or a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// When the request was sent.
    pub(crate) asked: Moment,
    /// The local deadline.
    pub(crate) until: Moment,
    /// Whether the lease restarted with the request. Otherwise no lease is ever shortened.
    pub(crate) restarted: bool,
}

/// A grant that members of one process share, and the state of its turns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cohort {
    tokens: Range<u64>,
    lease: Duration,
    /// Since when this process knows of the grant.
    known_since: Moment,
    turn: Turn,
    state: State,
    /// The members whose turn is still to come.
    to_come: VecDeque<OwnerId>,
    /// The local deadline: the server lets nobody else in before it.
    until: Moment,
    /// The time that counts as a full lease since the newest confirmation: a member enters only with two thirds of it
    /// left.
    confirmed: Duration,
    /// When the newest request that restarted the lease was sent. Answers to earlier requests no longer change the
    /// deadline.
    restarted: Option<Moment>,
}

impl Cohort {
    /// Creates the cohort of a grant whose turns are all still to come. Returns `None` without an owner.
    pub(crate) fn new(grant: &GrantSnapshot, now: Moment) -> Option<Self> {
        let turn = Turn {
            token: grant.first,
            owner: *grant.owners.first()?,
        };
        Some(Self {
            tokens: grant.first..grant.first + grant.owners.len() as u64,
            lease: grant.lease,
            known_since: now,
            turn,
            state: State::Retained, // taken, and nobody has a turn yet
            to_come: grant.owners.iter().copied().collect(),
            until: grant.until(),
            confirmed: grant.confirmed(),
            restarted: None,
        })
    }

    /// Returns the token that names the grant on the server.
    pub(crate) fn first(&self) -> u64 {
        self.tokens.start
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    pub(crate) fn until(&self) -> Moment {
        self.until
    }

    pub(crate) fn turn(&self) -> Turn {
        self.turn
    }

    pub(crate) fn to_come(&self) -> &VecDeque<OwnerId> {
        &self.to_come
    }

    /// Returns whether the token is one of the cohort's.
    pub(crate) fn contains(&self, token: u64) -> bool {
        self.tokens.contains(&token)
    }

    /// Returns whether the member under this token has the turn: offered, inside, or retained.
    pub(crate) fn has_turn(&self, token: u64) -> bool {
        self.turn.token == token && !self.is_over()
    }

    /// Returns whether no member of the cohort has a turn.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(
            self.state,
            State::Offered { .. } | State::Inside | State::Retained
        )
    }

    pub(crate) fn is_inside(&self, owner: OwnerId) -> bool {
        self.turn.owner == owner && self.state == State::Inside
    }

    pub(crate) fn is_released(&self) -> bool {
        self.state == State::Released
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.state == State::Suspended
    }

    pub(crate) fn is_offered(&self) -> bool {
        matches!(self.state, State::Offered { .. })
    }

    /// Returns whether this process knew of the grant before `moment`.
    pub(crate) fn was_known_at(&self, moment: Moment) -> bool {
        self.known_since < moment
    }

    /// Takes the next member and its token. Returns `None` if no member is left, or no time. The caller offers the
    /// member its turn, unless the member has left.
    pub(crate) fn next(&mut self, now: Moment) -> Option<Turn> {
        if self.is_over() || self.until <= now {
            return None;
        }
        let owner = self.to_come.pop_front()?;
        let token = self.tokens.end - 1 - self.to_come.len() as u64;
        Some(Turn { token, owner })
    }

    /// Gives the turn to a member that has missed `missed` offers before. The previous member no longer has it.
    pub(crate) fn offer(&mut self, turn: Turn, missed: u32, now: Moment) {
        self.turn = turn;
        let until = now + self.lease.min(claim_after(missed));
        self.state = State::Offered { until };
    }

    /// Lets the member under this token in, if it may enter. Called while the member is polled.
    pub(crate) fn enter(&mut self, token: u64, now: Moment) -> Seat {
        if self.turn.token != token || !self.is_offered() {
            return Seat::Missed;
        }
        let left = self.until.since(now);
        if left.is_zero() || left < self.confirmed * 2 / 3 {
            return Seat::Unconfirmed;
        }
        self.state = State::Inside;
        let valid_until = self.until.min(now + less_drift(self.lease));
        Seat::Inside(Grant {
            token: FencingToken::new(token),
            valid_until: Some(valid_until),
            validity: valid_until.since(now),
            queued: true,
        })
    }

    /// Returns whether an offer has stood for its full time.
    pub(crate) fn is_overdue(&self, now: Moment) -> bool {
        match self.state {
            State::Offered { until } => until <= now,
            _ => false,
        }
    }

    /// Returns the lease to renew to, if a member that enters at `soon` would find too little time left of its offer.
    pub(crate) fn renewal_of_offer(&self, soon: Moment) -> Option<Duration> {
        let short = self.until.since(soon) < self.confirmed * 2 / 3;
        (self.is_offered() && short).then_some(self.confirmed.min(self.lease))
    }

    /// Returns whether the local deadline has passed while a member has the turn.
    pub(crate) fn is_late(&self, now: Moment) -> bool {
        !self.is_over() && self.until <= now
    }

    /// Applies the server's answer to a request of the member under this token. Returns false if the answer does not
    /// count for that member: it no longer has the turn, or its lease had ended before the answer came.
    pub(crate) fn confirm(&mut self, token: u64, answer: Confirmation, now: Moment) -> bool {
        if !self.has_turn(token) || (self.state == State::Inside && self.until <= now) {
            return false;
        }
        let newest = self
            .restarted
            .is_none_or(|restarted| restarted <= answer.asked);
        if answer.restarted {
            self.restarted = self.restarted.max(Some(answer.asked));
        }
        if newest && (answer.restarted || answer.until > self.until) {
            self.until = answer.until;
            // Counted from the answer, so that a member that is polled at once has all of it.
            self.confirmed = answer.until.since(now);
        }
        true
    }

    /// Determines what follows when the member under this token leaves, or declines its offer.
    pub(crate) fn leave(&mut self, token: u64) -> Departure {
        if self.turn.token != token {
            return Departure::Stale;
        }
        match self.state {
            State::Offered { .. } | State::Inside | State::Retained => Departure::Free,
            State::Ended => Departure::Ended,
            State::Released => Departure::Stale,
            State::Suspended => Departure::Forgotten,
        }
    }

    /// Returns whether the server may keep the grant for longer than a member's lease, because a nested entry has
    /// extended it.
    pub(crate) fn is_stretched(&self, now: Moment) -> bool {
        self.until > now + self.lease
    }

    /// Keeps the lock taken after the member under this token has left. Returns false if the member has no turn or the
    /// lock is retained already.
    pub(crate) fn retain(&mut self, token: u64) -> bool {
        let retains = self.has_turn(token) && self.state != State::Retained;
        if retains {
            self.state = State::Retained;
        }
        retains
    }

    /// Ends the cohort: no member has a turn after this.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
        self.to_come.clear();
    }

    /// Notes that the release is confirmed.
    pub(crate) fn released(&mut self) {
        self.state = State::Released;
        self.to_come.clear();
    }

    /// Suspends the cohort after its local deadline: the remaining members queue again.
    pub(crate) fn suspend(&mut self) {
        self.state = State::Suspended;
        self.to_come.clear();
    }
}
