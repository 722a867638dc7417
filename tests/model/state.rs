//! The state of the model: the server, the processes with their connections, the callers, and the faults that may still
//! happen. `main.rs` explains the terms.

use std::hash::{Hash, Hasher};

use lock_core::lease::Moment;

use crate::{
    attempt_state::AttemptState,
    cohort::Cohort,
    cohorts::token_of,
    few::Few,
    scenario::Faults,
    server::{Acquired, Found, Joined, Place, Push, Server, Token},
};

/// A time in ticks. The heartbeat probes once a tick.
pub(crate) type Tick = i8;
/// A time on a process's clock, in ms.
pub(crate) type Stamp = u16;
pub(crate) type ProcessId = usize;
/// The number of a caller. Each caller makes one acquisition, so this number also serves as the owner of that
/// acquisition.
pub(crate) type CallerId = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The true time in the model. Each process's clock shows the true time minus the process's lag.
    pub(crate) now: Tick,
    pub(crate) server: Server,
    pub(crate) processes: Vec<Process>,
    pub(crate) callers: Vec<Caller>,
    /// The faults that may still happen.
    pub(crate) faults: Faults,
    pub(crate) observed: Observed,
}

/// What an observer of all processes and the server has seen so far. Only the properties use these values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Observed {
    /// The token of the newest grant whose push was lost.
    pub(crate) lost_push: Option<Token>,
    /// The newest token that was granted.
    pub(crate) token: Token,
    pub(crate) token_fell: bool,
    /// The newest token with which a body has begun.
    pub(crate) begun: Token,
    pub(crate) begun_fell: bool,
    /// Whether a process was killed while its grant had more time left than the lease of the caller that held the lock.
    pub(crate) outlived: bool,
    /// A caller that was granted the lock out of order, and a waiting caller that had queued before it.
    pub(crate) overtaken: Option<(CallerId, CallerId)>,
    /// The number of consecutive ticks at which no action was due, but a connected caller was neglected. A caller is
    /// neglected if the lock is free, or if the caller is neither in the queue nor an owner of the grant.
    pub(crate) neglected: u8,
    /// Whether the lock was granted to a waiter that could not be notified.
    pub(crate) unheard: bool,
    /// Whether a waiter was passed over because its `wait` was over or it could not be notified.
    pub(crate) skipped: bool,
    /// Whether a cohort let a member enter at or after the cohort's local deadline.
    pub(crate) seated_late: bool,
    /// Whether a cohort accepted the answer to a renewal for a member that did not have the turn.
    pub(crate) answered_astray: bool,
    /// Whether a member of a cohort was passed over because it had left.
    pub(crate) passed_over: bool,
    /// Whether an offer was passed on because its member did not take it.
    pub(crate) missed: bool,
    /// Whether the engine gave up the grant in a reply because the caller did not read the reply.
    pub(crate) revoked: bool,
    /// Whether a cohort was lost and its members queued again.
    pub(crate) lost_cohort: bool,
    /// Whether a cohort was released because none of its members was waiting when its process was notified of the
    /// grant.
    pub(crate) nobody_left: bool,
    /// Whether a process received a message about a cohort although it already knew this cohort or a newer one.
    pub(crate) told_again: bool,
}

/// One process: a session for its callers (`session.rs`), and the engine's home session for background work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) alive: bool,
    /// How far the process's clock has fallen behind, in ms.
    pub(crate) lag: u8,
    pub(crate) main: Session,
    /// The requests that the server has not read from a connection that the process has closed. Until the server
    /// notices that the connection is closed, it counts the connection as a subscriber of the notification channel.
    pub(crate) old: Option<Vec<Request>>,
    pub(crate) home: Home,
    /// The newest cohort of the process.
    pub(crate) entry: Option<Entry>,
    /// The token of the first member of each cohort that is being released in the background, and the tick at which the
    /// process gives up the release.
    pub(crate) letting_go: Vec<(Token, Tick)>,
    /// Whether the heartbeat has sent its probe in this tick.
    pub(crate) probed: bool,
    /// Whether the answer to a probe is outstanding.
    pub(crate) probing: bool,
}

/// A cohort in the registry of its process, with additional data of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) cohort: Cohort,
    /// Whether a renewal of the grant of an offer is unanswered.
    pub(crate) renewing: bool,
    /// When the current turn was offered.
    pub(crate) since: Tick,
    /// How the first owner learned of the grant.
    pub(crate) by: By,
}

/// Hashes only the values on which later steps depend, so that the checker does not visit states that differ only in
/// the other values. If the cohort is over, later steps depend only on the token of its first member, on its last turn,
/// and on whether the cohort was released or suspended.
impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let cohort = &self.cohort;
        if cohort.is_over() {
            let is = (cohort.is_released(), cohort.is_suspended());
            (cohort.first(), cohort.turn(), is).hash(state);
        } else {
            (cohort, self.renewing, self.since, self.by).hash(state);
        }
    }
}

/// The connection that carries the callers' commands. Messages arrive in the order in which they were sent, in both
/// directions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    pub(crate) up: bool,
    /// The server's time when the connection was made.
    pub(crate) floor: Token,
    /// The time at which the newest answered command was sent, as in the engine's `Health`.
    pub(crate) answered: Stamp,
    /// Whether a batch on this connection is unanswered.
    pub(crate) sending_batch: bool,
    pub(crate) requests: Vec<Request>,
    pub(crate) events: Vec<Event>,
}

/// The connection for background work. The engine does not rely on the order of messages on this connection, so the
/// model delivers the messages in any order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Home {
    pub(crate) floor: Token,
    pub(crate) requests: Vec<Request>,
    pub(crate) events: Vec<Event>,
}

/// A script on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) caller: CallerId,
    /// When the script was sent, by the clock of its process.
    pub(crate) sent: Stamp,
    pub(crate) script: Script,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// The caller's own request. A caller sends this request if it makes a single attempt, or if it has never had a
    /// place and no other caller of its process waits for the lock or holds it.
    Acquire {
        not_after: Option<Tick>,
    },
    /// A batch: one request for several callers of a process, with their old places.
    Queue {
        members: Few<(CallerId, Option<Place>)>,
        not_after: Option<Tick>,
    },
    /// Removes a caller from the queue. With `abandon`, also gives back the grant if this caller is its only owner.
    /// With `close`, a `CLIENT KILL` of the connection that carried the caller's request precedes the script.
    Leave {
        abandon: bool,
        close: bool,
    },
    Release(Token),
    Renew(Renewal),
    /// A probe. Asks for the grant of the caller's process, and whether the server has lost the caller.
    Probe,
}

/// A renewal. A renewal with the lease 0 is a check, which extends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    /// The token of the member whose turn is renewed.
    pub(crate) token: Token,
    /// The token by which the server identifies the grant, or `None` if the process knows no cohort with this grant.
    pub(crate) known: Option<Token>,
    pub(crate) lease: Tick,
}

/// A message from the server to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Push(Push),
    Reply {
        caller: CallerId,
        sent: Stamp,
        reply: Reply,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Acquired(Acquired),
    Joined(Joined),
    /// The reply to a `leave` script without `abandon`: the grant with which the caller can enter, if there is one.
    Left(Option<Found>),
    /// The reply to a `leave` script with `abandon`: the grant of the cohort in which the caller gives up its turn, if
    /// there is one.
    Abandoned(Option<Found>),
    Released(Token),
    Renewed(Renewal, Option<Tick>),
    Probed(Option<Found>, bool),
}

/// The acquisition of a caller. Two fields of `AttemptState` are not hashed: `phase`, because the model's [`Phase`]
/// determines it, and `unsure`, because this field matters only after the server has refused a request, and the model's
/// server refuses none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt(pub(crate) AttemptState);

impl Hash for Attempt {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self(attempt) = self;
        let settled = attempt.is_settled();
        (attempt.offer(), attempt.place(), attempt.missed(), settled).hash(state);
    }
}

/// One call that requests the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) phase: Phase,
    /// When the caller's `wait` ends.
    pub(crate) wait_until: Tick,
    /// When the call began. Only the properties use this time.
    pub(crate) began: Tick,
    /// The time at which the request of a slow caller (one that is polled late or never) was sent. If the caller does
    /// not read the reply in time, the engine gives up the grant in the reply.
    pub(crate) asked: Tick,
    pub(crate) place: Option<Place>,
    /// The caller's number in the order of joining the queue. Only the properties use this number.
    pub(crate) joined: Option<u8>,
    pub(crate) attempt: Attempt,
    /// The token of the newest turn that was offered to the caller, until the caller's future reads the offer.
    pub(crate) told: Option<Token>,
    /// Whether the next batch includes the caller.
    pub(crate) joins: bool,
    /// Whether an unanswered batch of the session includes the caller. Until the batch is answered, the caller neither
    /// enters nor leaves.
    pub(crate) resending: bool,
    /// Whether the connection that carried the caller's newest request still exists, or `None` if the caller has sent
    /// no request.
    pub(crate) carried: Option<bool>,
    pub(crate) behind: Option<Behind>,
}

/// How the owner learned of its grant or its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By {
    Reply,
    /// The reply to a request that was resent.
    Resend,
    Push,
    Probe,
    Leave,
    /// The previous member of the cohort ended its turn.
    Pass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// The caller's request is unanswered, or will be sent over the next connection.
    Asking,
    /// The reply has arrived, and the caller's future has not been polled since.
    Answered {
        reply: Acquired,
        sent: Stamp,
    },
    /// The engine has given up the grant that the reply may contain, and the caller's future has not been polled since.
    Revoked,
    /// The caller waits for its turn, or it has an offer and waits until its batch is answered or the engine has
    /// renewed the grant.
    Queued,
    /// The caller renews its turn by itself (`Broken::AnswerSeats`). `answer` is the local deadline, or `None` until
    /// the server has answered.
    Confirming {
        token: Token,
        answer: Option<Moment>,
    },
    /// The caller's body runs.
    Inside(Hold),
    /// The caller's `wait` is over, and the caller leaves the queue. If the server's reply contains a grant, the caller
    /// can enter.
    Leaving {
        since: Tick,
    },
    /// The caller's release is under way. `first` is the token that identifies the grant.
    Releasing {
        token: Token,
        first: Token,
        since: Tick,
        lease_ends: Moment,
    },
    Ended(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) token: Token,
    pub(crate) since: Tick,
    /// The local deadline of the hold.
    pub(crate) until: Moment,
    /// Whether the grant is unconfirmed, so that it ends after a claim (2 s) and not after its lease.
    pub(crate) claim: bool,
    /// The time of the newest renewal or check.
    pub(crate) tended: Tick,
    /// Whether the newest renewal or check is unanswered.
    pub(crate) tending: bool,
    pub(crate) by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Left,
    Lost,
    /// The caller missed its turn and continues under another owner name.
    Missed,
    Busy,
    Unreachable,
    Cancelled,
    Crashed {
        inside: bool,
    },
}

/// Background work for a caller that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Behind {
    /// Waits until the server has answered the batch that contains this caller's request, and then gives back the offer
    /// with this token, if there is one.
    Gate(Option<Token>),
    /// Sends `leave` over the connection that carried the caller's request, so that the server reads the request first.
    Leave {
        since: Tick,
    },
    /// Sends `leave` over the engine's home session. If the server allows `CLIENT KILL`, the engine's home session
    /// first closes the connection that carried the caller's request.
    LeaveFromHome {
        until: Tick,
        sent: Tick,
    },
    Release {
        first: Token,
        until: Moment,
    },
}

impl State {
    pub(crate) fn caller(&mut self, id: CallerId) -> &mut Caller {
        &mut self.callers[usize::from(id)]
    }

    pub(crate) fn heard(&self) -> Vec<bool> {
        let heard = |process: &Process| process.main.up || process.old.is_some();
        self.processes.iter().map(heard).collect()
    }
}

impl Caller {
    /// Returns whether the call has begun, but has neither entered nor ended.
    pub(crate) fn waits(&self) -> bool {
        matches!(
            self.phase,
            Phase::Asking
                | Phase::Answered { .. }
                | Phase::Revoked
                | Phase::Queued
                | Phase::Confirming { .. }
                | Phase::Leaving { .. }
        )
    }

    /// Returns whether the caller can be offered a turn: it awaits its reply or its turn, and has no offer.
    pub(crate) fn is_waiting(&self) -> bool {
        let waits = matches!(
            self.phase,
            Phase::Asking | Phase::Answered { .. } | Phase::Queued
        );
        waits && self.turn().is_none()
    }

    /// Returns the token of the turn that is offered to the caller, or `None` if the caller has no offer.
    pub(crate) fn turn(&self) -> Option<Token> {
        self.told.or_else(|| self.attempt.0.offer().map(token_of))
    }

    /// Returns the caller's own token if the caller holds the lock, or the token that identifies the grant that the
    /// caller is releasing.
    pub(crate) fn held(&self) -> Option<Token> {
        match (self.phase, self.behind) {
            (Phase::Inside(hold), _) => Some(hold.token),
            (Phase::Releasing { first, .. }, _) | (_, Some(Behind::Release { first, .. })) => {
                Some(first)
            }
            _ => None,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_)) && self.behind.is_none()
    }
}
