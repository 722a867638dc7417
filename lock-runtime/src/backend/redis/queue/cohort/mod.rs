//! A cohort: neighbours in the queue, all of one session, that share one grant. The process passes the turn from one
//! member to the next in memory, in the order of the queue, and releases the grant once, after the last turn. A waiter
//! that is granted a lock alone is a cohort of one.
//!
//! This file only makes decisions: it uses no I/O, no clock and no tokio. [`cohort_registry`](super::cohort_registry)
//! stores the cohorts, and calls their methods.
//!
//! # Rules
//! 1. At most one member of a cohort has the turn. The turn is `Offered` to this member, the member holds the lock
//!    (`Inside`), or the member has left and the lock stays taken (`Retained`).
//! 2. A member takes its turn by one change of the state in memory. The change is allowed only if the member's offer has
//!    not been passed on. An answer from the server alone never lets a member take its turn.
//! 3. A request to the server belongs to the member that had the turn when the request was sent. If this member no
//!    longer has the turn, the cohort ignores the answer to the request.
//!
//! The engine takes the turn for the member. If the member's call then does not begin its body in time, the engine
//! releases the lock for it, and the turn passes to the next member.

use std::{collections::VecDeque, ops::Range, time::Duration};

use lock_core::{
    fencing::FencingToken,
    lease::{CLAIM, Grant, Moment, less_drift},
    owner::OwnerId,
};

use crate::backend::redis::protocol::grant::GrantSnapshot;

#[cfg(test)]
mod tests;

/// The turn of one member. No two turns of a lock have the same token, so the token identifies the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Turn {
    pub(crate) token: u64,
    pub(crate) owner: OwnerId,
}

/// The state of the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// The turn was offered to the member, and the engine has not taken it for the member yet.
    Offered,
    /// The member has taken its turn, and holds the lock.
    Inside,
    /// The member has left, and the lock stays taken until the member's minimum hold time is over.
    Retained,
    /// No member is left, or the server has lost the grant. An ended cohort is kept until the server confirms the
    /// release, or the grant is past, because the release names the grant by the token of the cohort's first member.
    Ended,
    /// The server has confirmed the release of the grant. A released cohort is kept while callers wait for the lock, so
    /// that late messages about the grant are recognized.
    Released,
    /// The local deadline of the grant has passed, and the remaining members queue again. If the server still has the
    /// grant, it describes the grant in its answers to these members, and the engine then forms the cohort again. A
    /// suspended cohort is kept until the member that had the turn leaves.
    Suspended,
}

/// The answer to a member that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The turn is free, and has to be offered to the next member of the cohort.
    Free,
    /// The cohort has ended, and the server has not confirmed the release yet.
    Ended,
    /// The member that leaves no longer has the turn.
    Stale,
    /// The cohort was suspended (its local deadline passed) during the member's turn.
    Suspended,
}

/// The server's answer to the renewal or the check of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// The moment at which the renewal or the check was sent.
    pub(crate) asked: Moment,
    /// The local deadline of the grant, calculated from the answer.
    pub(crate) until: Moment,
    /// Whether the request restarted the lease. Only a request that restarts the lease can shorten it.
    pub(crate) restarted: bool,
}

/// A grant that the members of a cohort share, and the state of their turns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cohort {
    tokens: Range<u64>,
    lease: Duration,
    /// The moment at which this process learnt of the grant.
    known_since: Moment,
    turn: Turn,
    state: State,
    /// The members whose turn is still to come.
    to_come: VecDeque<OwnerId>,
    /// The local deadline of the grant. Before the local deadline, the server grants the lock to nobody else.
    until: Moment,
    /// The moment at which the newest request that restarted the lease was sent. Answers to requests that were sent
    /// earlier no longer change the local deadline.
    restarted: Option<Moment>,
    /// The extensions that were requested after the newest restart of the lease. The value is a pair: the moment of the
    /// newest request, and the latest end of the lease that any of these requests asked for. The server may have
    /// carried out a request whose answer was not read.
    extension: Option<(Moment, Moment)>,
}

impl Cohort {
    /// Creates the cohort of a grant, before any member has its turn. Returns `None` if the grant has no owner.
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
            state: State::Retained, // the lock is taken, and no member has been offered a turn
            to_come: grant.owners.iter().copied().collect(),
            until: grant.until(),
            restarted: None,
            extension: None,
        })
    }

    /// Returns the token of the cohort's first member, by which the server identifies the grant.
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

    /// Returns whether the token belongs to a member of the cohort.
    pub(crate) fn contains(&self, token: u64) -> bool {
        self.tokens.contains(&token)
    }

    /// Returns whether the member with this token has the turn. A member that has left still has the turn while its
    /// minimum hold time keeps the lock taken (retained).
    pub(crate) fn has_turn(&self, token: u64) -> bool {
        self.turn.token == token && !self.is_over()
    }

    /// Returns whether the cohort is over, so that no member has the turn any longer.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.state, State::Offered | State::Inside | State::Retained)
    }

    pub(crate) fn is_inside(&self, owner: OwnerId) -> bool {
        self.turn.owner == owner && self.state == State::Inside
    }

    /// Returns whether a member has taken its turn and keeps the lock taken, or whether the release of the grant is not
    /// confirmed.
    pub(crate) fn is_unsettled(&self) -> bool {
        matches!(self.state, State::Inside | State::Retained | State::Ended)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    pub(crate) fn is_released(&self) -> bool {
        self.state == State::Released
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.state == State::Suspended
    }

    pub(crate) fn is_offered(&self) -> bool {
        matches!(self.state, State::Offered)
    }

    /// Returns whether this process learnt of the grant before `moment`.
    pub(crate) fn was_known_at(&self, moment: Moment) -> bool {
        self.known_since < moment
    }

    /// Removes the first of the members whose turn is still to come, and returns this member with its token. Returns
    /// `None` if no such member is left, if the local deadline of the grant has passed, or if the cohort is over. The
    /// calling code offers the member its turn, unless the member has left.
    pub(crate) fn next(&mut self, now: Moment) -> Option<Turn> {
        if self.is_over() || self.until <= now {
            return None;
        }
        let owner = self.to_come.pop_front()?;
        let token = self.tokens.end - 1 - self.to_come.len() as u64;
        Some(Turn { token, owner })
    }

    /// Offers the turn to a member. After this call, the previous member no longer has the turn.
    pub(crate) fn offer(&mut self, turn: Turn) {
        self.turn = turn;
        self.state = State::Offered;
    }

    /// Takes the turn for the member with this token, if the turn is offered to it and the local deadline has not passed.
    pub(crate) fn enter(&mut self, token: u64, now: Moment) -> Option<Grant> {
        if self.state != State::Offered || self.turn.token != token || self.until <= now {
            return None;
        }
        self.state = State::Inside;
        let valid_until = self.until.min(now + less_drift(self.lease));
        Some(Grant {
            token: FencingToken::new(token),
            valid_until: Some(valid_until),
            validity: valid_until.since(now),
            queued: true,
            handoff: Some(Duration::ZERO),
        })
    }

    /// Returns whether the local deadline has passed while the turn is offered, or while a member holds the lock.
    /// Returns false for a retained lock, because the remaining members then wait for the end of the minimum hold time,
    /// even if the deadline has passed.
    pub(crate) fn is_late(&self, now: Moment) -> bool {
        matches!(self.state, State::Offered | State::Inside) && self.until <= now
    }

    /// Applies the server's answer to a request of the member with this token. Returns false if the cohort ignores the
    /// answer. The cohort does so if that member no longer has the turn, or if that member holds the lock and the local
    /// deadline passed before the answer came.
    pub(crate) fn confirm(&mut self, token: u64, answer: Confirmation, now: Moment) -> bool {
        if !answer.restarted {
            self.note_extension(token, answer.asked, answer.until);
        } else if self
            .extension
            .is_some_and(|(asked, _)| asked <= answer.asked)
        {
            self.extension = None;
        }
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
        }
        true
    }

    /// Records that the member with this token has sent a request at `asked` for a lease that ends at `until`.
    pub(crate) fn note_extension(&mut self, token: u64, asked: Moment, until: Moment) {
        if self.contains(token) {
            self.extend_known(asked, until);
        }
    }

    fn extend_known(&mut self, asked: Moment, until: Moment) {
        let (newest, longest) = self.extension.unwrap_or((asked, until));
        self.extension = Some((asked.max(newest), until.max(longest)));
    }

    /// Continues `before`, the suspended cohort of the same grant. A restart or an extension of the lease by a member that
    /// has left can still reach the server.
    pub(crate) fn continue_from(&mut self, before: &Self) {
        self.restarted = before.restarted;
        self.extension = before.extension;
    }

    /// Counts the grant for one lease after `asked`, the moment at which the request was sent whose answer describes the
    /// grant. `lease` is what the members have asked for. If the server names more, a member that has left has extended
    /// the lease, and the request that takes the extension back can still be under way.
    pub(crate) fn cap(&mut self, lease: Duration, asked: Moment) {
        if self.until > asked + lease {
            self.extend_known(asked, self.until);
        }
        self.lease = lease;
        self.until = self.until.min(asked + less_drift(lease));
    }

    /// Records that the member with this token restarts the lease with a request that is sent at `asked`. The lease then
    /// ends at `until` at the earliest. The answer can be lost, so the grant counts as shortened from now on, whatever the
    /// answers to earlier requests say.
    pub(crate) fn note_restart(&mut self, token: u64, asked: Moment, until: Moment) {
        if self.has_turn(token) {
            self.restarted = self.restarted.max(Some(asked));
            self.until = self.until.min(until);
        }
    }

    /// Returns what the engine has to do when the member with this token leaves, or declines the turn that it was
    /// offered.
    pub(crate) fn leave(&mut self, token: u64) -> Departure {
        if self.turn.token != token {
            return Departure::Stale;
        }
        match self.state {
            State::Offered | State::Inside | State::Retained => Departure::Free,
            State::Ended => Departure::Ended,
            State::Released => Departure::Stale,
            State::Suspended => Departure::Suspended,
        }
    }

    /// Returns whether the grant possibly lasts longer on the server than one lease from now. This is possible only
    /// if a member has extended the grant, or has requested an extension and has not read the answer.
    pub(crate) fn is_stretched(&self, now: Moment) -> bool {
        self.latest_end() > now + self.lease
    }

    /// Returns the latest known moment at which the lease can end on the server. This is the local deadline, or the end
    /// of an extension that was requested after the newest restart of the lease.
    pub(crate) fn latest_end(&self) -> Moment {
        self.extension
            .map_or(self.until, |(_, until)| self.until.max(until))
    }

    /// Returns whether the server no longer has the grant. A request to release it can be under way until a claim after
    /// the end of the lease.
    pub(crate) fn is_past(&self, now: Moment) -> bool {
        self.latest_end() + CLAIM <= now
    }

    /// Keeps the lock taken after the member with this token has left. Returns false if the member with this token does
    /// not have the turn, or if the lock is retained already.
    pub(crate) fn retain(&mut self, token: u64) -> bool {
        let retains = self.has_turn(token) && self.state != State::Retained;
        if retains {
            self.state = State::Retained;
        }
        retains
    }

    /// Ends the cohort. After this call, no member has the turn.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
        self.to_come.clear();
    }

    /// Records that the server has confirmed the release of the cohort's grant.
    pub(crate) fn mark_released(&mut self) {
        self.state = State::Released;
        self.to_come.clear();
    }

    /// Ends the cohort, so that its grant has to be released by the latest end of the lease that is known, but not before
    /// `at_least`. Returns this moment. Until then, the cohort counts as ended.
    pub(crate) fn end_by(&mut self, at_least: Moment) -> Moment {
        self.until = self.latest_end().max(at_least);
        self.end();
        self.until
    }

    /// Suspends the cohort after its local deadline has passed. The remaining members have to queue again.
    pub(crate) fn suspend(&mut self) {
        self.state = State::Suspended;
        self.to_come.clear();
    }
}
