//! A cohort: neighbours in the queue, all of one session, that share one grant. The process passes the turn from one
//! member to the next in memory, in the order of the queue, and releases the grant once, after the last turn. A waiter
//! that is granted a lock alone is a cohort of one.
//!
//! This file only makes decisions: it uses no I/O, no clock and no tokio. [`cohorts`](super::cohorts)
//! stores the cohorts, and calls their methods.
//!
//! The members of a cohort of readers all have their turns at once, and the grant is released after the last of them has left.
//!
//! # Rules
//! 1. At most one member of a cohort has the turn, and holds the lock by it, unless the members are readers.
//! 2. A member gets its turn by one change of the state in memory. An answer from the server alone never lets a member
//!    take its turn.
//! 3. A request to the server belongs to the member that had the turn when the request was sent. If this member no
//!    longer has the turn, the cohort ignores the answer to the request.
//! 4. The members share the grant only while all of them want the same. Before a member asks for a longer lease, or
//!    leaves a lock that stays taken, the other members queue again ([`dissolve`](Cohort::dissolve)).
//!
//! If the call of a member that has the turn does not begin its body in time, the engine releases the lock for it, and the
//! turn passes to the next member.

use std::{collections::VecDeque, ops::Range, time::Duration};

use lock_core::{
    fencing::FencingToken,
    lease::{CLAIM, Grant, Moment, less_drift},
    options::Mode,
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
    /// The lock is granted, and no member has had its turn yet.
    Granted,
    /// A member has the turn, and holds the lock.
    Inside,
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
    /// The turn is free, and passes to the next member of the cohort.
    Free,
    /// Other readers of the cohort are still inside.
    OthersStay,
    /// The cohort has ended, and the server has not confirmed the release yet.
    Ended,
    /// The member that leaves no longer has the turn.
    Stale,
    /// The cohort was suspended (its local deadline passed) during the member's turn.
    Suspended,
}

/// A grant that the members of a cohort share, and the state of their turns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cohort {
    tokens: Range<u64>,
    lease: Duration,
    mode: Mode,
    /// The moment at which this process learnt of the grant.
    known_since: Moment,
    /// The turns of the members that hold the lock: of one, or of all readers that have not left. If none holds it, the last
    /// turn.
    turns: Vec<Turn>,
    state: State,
    /// The members whose turn is still to come.
    to_come: VecDeque<OwnerId>,
    /// The local deadline of the grant. Before the local deadline, the server grants the lock to nobody else.
    until: Moment,
    /// Whether the member that has the turn keeps the grant alone, because it wants more than the others.
    is_dissolved: bool,
    /// The members that have to queue again for this reason.
    queueing: VecDeque<OwnerId>,
    /// The moment until which the lock stays taken after the last reader has left, because one of them has a minimum hold.
    retain_until: Option<Moment>,
    /// The latest end of the lease that is known, or that a member has asked for. The server may have carried out a
    /// request whose answer was not read.
    latest_end: Moment,
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
            mode: grant.mode,
            known_since: now,
            turns: vec![turn],
            state: State::Granted,
            to_come: grant.owners.iter().copied().collect(),
            until: grant.until(),
            is_dissolved: false,
            queueing: VecDeque::new(),
            retain_until: None,
            latest_end: grant.until(),
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

    pub(crate) fn is_shared(&self) -> bool {
        self.mode.is_shared()
    }

    /// Lets readers be inside beside the member with this token, which wrote alone.
    pub(crate) fn downgrade(&mut self, token: u64) {
        if self.has_turn(token) {
            self.mode = Mode::Read;
        }
    }

    /// Returns the newest turn.
    pub(crate) fn turn(&self) -> Turn {
        *self.turns.last().expect("a cohort keeps its last turn")
    }

    /// Returns the turn of this member; `None` if it has none.
    pub(crate) fn turn_of(&self, owner: OwnerId) -> Option<Turn> {
        let mut turns = self.turns.iter().copied();
        turns.find(|turn| turn.owner == owner && self.state == State::Inside)
    }

    fn knows(&self, token: u64) -> bool {
        self.turns.iter().any(|turn| turn.token == token)
    }

    pub(crate) fn to_come(&self) -> &VecDeque<OwnerId> {
        &self.to_come
    }

    /// Returns whether the token belongs to a member of the cohort.
    pub(crate) fn contains(&self, token: u64) -> bool {
        self.tokens.contains(&token)
    }

    /// Returns whether the member with this token has the turn.
    pub(crate) fn has_turn(&self, token: u64) -> bool {
        self.knows(token) && !self.is_over()
    }

    /// Returns whether the cohort is over, so that no member has the turn any longer.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.state, State::Granted | State::Inside)
    }

    pub(crate) fn is_inside(&self, owner: OwnerId) -> bool {
        self.turn_of(owner).is_some()
    }

    /// Returns whether a member has the turn, or whether the release of the grant is not confirmed.
    pub(crate) fn is_unsettled(&self) -> bool {
        matches!(self.state, State::Inside | State::Ended)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    pub(crate) fn is_dissolved(&self) -> bool {
        self.is_dissolved
    }

    pub(crate) fn is_released(&self) -> bool {
        self.state == State::Released
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.state == State::Suspended
    }

    /// Returns whether this process learnt of the grant before `moment`.
    pub(crate) fn was_known_at(&self, moment: Moment) -> bool {
        self.known_since < moment
    }

    /// Removes the first of the members whose turn is still to come, and returns this member with its token. Returns
    /// `None` if no such member is left, if the local deadline of the grant has passed, or if the cohort is over. The
    /// calling code gives the member its turn, unless the member has left.
    pub(crate) fn next(&mut self, now: Moment) -> Option<Turn> {
        if self.is_over() || self.until <= now {
            return None;
        }
        let owner = self.to_come.pop_front()?;
        let token = self.tokens.end - 1 - self.to_come.len() as u64;
        Some(Turn { token, owner })
    }

    /// Lets a member have the turn. After this call, the previous member no longer has it, unless both are readers.
    pub(crate) fn enter(&mut self, turn: Turn) {
        if !self.is_shared() || self.state == State::Granted {
            self.turns.clear();
        }
        self.turns.push(turn);
        self.state = State::Inside;
    }

    /// Returns the grant by which this member holds the lock; `None` if it does not have the turn, or if the local deadline has
    /// passed.
    pub(crate) fn grant_of(&self, owner: OwnerId, now: Moment) -> Option<Grant> {
        let turn = self.turn_of(owner).filter(|_| self.until > now)?;
        let valid_until = self.until.min(now + less_drift(self.lease));
        Some(Grant {
            token: FencingToken::new(turn.token),
            valid_until: Some(valid_until),
            validity: valid_until.since(now),
            queued: true,
            handoff: Some(Duration::ZERO),
        })
    }

    /// Returns whether the local deadline has passed while a member holds the lock.
    pub(crate) fn is_late(&self, now: Moment) -> bool {
        self.state == State::Inside && self.until <= now
    }

    /// Applies the answer of the server, which confirms the grant until `until`, to a request of the member with this token.
    /// Returns false if the cohort ignores the answer. The cohort does so if that member no longer has the turn, or if that
    /// member holds the lock and the local deadline passed before the answer came.
    pub(crate) fn confirm(&mut self, token: u64, until: Moment, now: Moment) -> bool {
        self.note_request(token, until);
        if !self.has_turn(token) || (self.state == State::Inside && self.until <= now) {
            return false;
        }
        self.until = self.until.max(until);
        true
    }

    /// Records that the member with this token asks for a lease that ends at `until`.
    pub(crate) fn note_request(&mut self, token: u64, until: Moment) {
        if self.contains(token) {
            self.latest_end = self.latest_end.max(until);
        }
    }

    /// Continues `before`, the suspended cohort of the same grant. A request of a member that has left can still reach the
    /// server.
    pub(crate) fn continue_from(&mut self, before: &Self) {
        self.latest_end = self.latest_end.max(before.latest_end);
    }

    /// Returns the members that have to queue again, so that the member with this token keeps the grant alone. If that member
    /// `wants_more` than the others, these are all others. From then on, no turn passes to them in memory. They are returned
    /// until [`has_queued`](Self::has_queued) is called.
    pub(crate) fn dissolve(&mut self, token: u64, wants_more: bool) -> &VecDeque<OwnerId> {
        if self.has_turn(token) && wants_more {
            self.is_dissolved = true;
            self.queueing.extend(self.to_come.drain(..));
        }
        &self.queueing
    }

    /// Records that the server has queued the other members again.
    pub(crate) fn has_queued(&mut self, token: u64) {
        if self.knows(token) {
            self.queueing.clear();
        }
    }

    /// Records that these members have to queue again, because the server has lost the script that queued them.
    pub(crate) fn queue_again(&mut self, others: VecDeque<OwnerId>) {
        if self.is_dissolved && !self.is_over() {
            self.queueing = others;
        }
    }

    /// Whether members have to queue again, and the server has not queued them yet.
    pub(crate) fn is_queueing(&self) -> bool {
        !self.queueing.is_empty()
    }

    /// Records that the lock has to stay taken until `until` after the member with this token has left, unless it no longer
    /// has the turn. Returns the latest such moment of all members.
    pub(crate) fn retain(&mut self, token: u64, until: Option<Moment>) -> Option<Moment> {
        if self.has_turn(token) {
            self.retain_until = self.retain_until.max(until);
        }
        self.retain_until
    }

    /// Returns what the engine has to do when the member with this token leaves.
    pub(crate) fn leave(&mut self, token: u64) -> Departure {
        if !self.knows(token) {
            return Departure::Stale;
        }
        if self.turns.len() > 1 {
            self.turns.retain(|turn| turn.token != token);
            return match self.is_over() {
                true => Departure::Stale,
                false => Departure::OthersStay,
            };
        }
        match self.state {
            State::Granted | State::Inside => Departure::Free,
            State::Ended => Departure::Ended,
            State::Released => Departure::Stale,
            State::Suspended => Departure::Suspended,
        }
    }

    /// Returns the latest moment at which the lease can end on the server.
    pub(crate) fn latest_end(&self) -> Moment {
        self.latest_end
    }

    /// Returns whether the server no longer has the grant. A request to release it can be under way until a claim after
    /// the end of the lease.
    pub(crate) fn is_past(&self, now: Moment) -> bool {
        self.latest_end + CLAIM <= now
    }

    /// Ends the cohort. After this call, no member has the turn.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
        self.to_come.clear();
        self.queueing.clear();
    }

    /// Records that the server has confirmed the release of the cohort's grant.
    pub(crate) fn mark_released(&mut self) {
        self.state = State::Released;
        self.to_come.clear();
        self.queueing.clear();
    }

    /// Ends the cohort, so that its grant has to be released by the latest end of the lease that is known, but not before
    /// `at_least`. Returns this moment. Until then, the cohort counts as ended.
    pub(crate) fn end_by(&mut self, at_least: Moment) -> Moment {
        self.latest_end = self.latest_end.max(at_least);
        self.end();
        self.latest_end
    }

    /// Suspends the cohort after its local deadline has passed. The remaining members have to queue again.
    pub(crate) fn suspend(&mut self) {
        self.state = State::Suspended;
        self.to_come.clear();
        self.queueing.clear();
    }
}
