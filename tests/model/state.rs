//! A state of the model: the server, the processes with their connections, the callers, and the remaining faults.

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

/// The unit of time: about the interval of the heartbeat.
pub(crate) type Tick = i8;
/// A time on a process's clock, in ms.
pub(crate) type Stamp = u16;
pub(crate) type ProcessId = usize;
/// The number of a caller. Each caller is one acquisition, and so one owner.
pub(crate) type CallerId = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The time that the processes' clocks follow.
    pub(crate) now: Tick,
    pub(crate) server: Server,
    pub(crate) processes: Vec<Process>,
    pub(crate) callers: Vec<Caller>,
    /// The faults that may still happen.
    pub(crate) faults: Faults,
    pub(crate) observed: Observed,
}

/// The knowledge of an observer that sees everything, for the properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Observed {
    /// The newest grant whose push was lost.
    pub(crate) lost_push: Option<Token>,
    /// The newest token that was granted.
    pub(crate) token: Token,
    pub(crate) token_fell: bool,
    /// The newest token with which a body has begun.
    pub(crate) begun: Token,
    pub(crate) begun_fell: bool,
    /// A process was killed, and the lock outlasts the lease of the caller that was inside.
    pub(crate) outlived: bool,
    /// A caller that entered, and a caller that had queued before and still waited.
    pub(crate) overtaken: Option<(CallerId, CallerId)>,
    /// The number of consecutive ticks in which a live caller waited for a lock that nobody held, or without a place in
    /// the queue, while nothing was late.
    pub(crate) neglected: u8,
    /// A waiter that could not hear it was granted the lock.
    pub(crate) unheard: bool,
    /// A dead waiter was passed over.
    pub(crate) skipped: bool,
    /// A cohort let a member in at or after its local deadline.
    pub(crate) seated_late: bool,
    /// The answer to a renewal counted for a member without the turn.
    pub(crate) answered_astray: bool,
    /// A member of a cohort was passed over, because it had left.
    pub(crate) passed_over: bool,
    /// An untaken offer was passed on.
    pub(crate) missed: bool,
    /// An unread reply was given up.
    pub(crate) revoked: bool,
    /// A cohort was lost, and its members queued again.
    pub(crate) lost_cohort: bool,
    /// A cohort was released because none of its members waited when the process heard of it.
    pub(crate) nobody_left: bool,
    /// A cohort that was known or over was described again.
    pub(crate) told_again: bool,
}

/// One process: a session for its callers (`session.rs`), and the home session for background work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) alive: bool,
    /// How far its clock has fallen behind, in ms.
    pub(crate) lag: u8,
    pub(crate) main: Session,
    /// What the server still has of a closed connection: a subscription, and unread requests.
    pub(crate) old: Option<Vec<Request>>,
    pub(crate) home: Home,
    /// The newest grant that its callers share, and the current turn.
    pub(crate) entry: Option<Entry>,
    /// Background releases of cohorts, and when each is given up.
    pub(crate) letting_go: Vec<(Token, Tick)>,
    /// Whether the heartbeat of this tick has happened, and whether it still waits for its answer.
    pub(crate) probed: bool,
    pub(crate) probing: bool,
}

/// A cohort in the registry of its process, with additional data of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) cohort: Cohort,
    /// Whether the server has been asked to renew the offer.
    pub(crate) renewing: bool,
    /// When the turn was offered.
    pub(crate) since: Tick,
    /// How its first owner heard of the grant.
    pub(crate) by: By,
}

/// Values that no longer matter would distinguish equal states. For a cohort that is over, only its name counts.
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

/// The connection that carries the callers' commands. Both directions keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    pub(crate) up: bool,
    /// The server's time when it was made.
    pub(crate) floor: Token,
    /// When the newest command with a reply was sent (`Health`).
    pub(crate) answered: Stamp,
    /// Whether a batch is under way.
    pub(crate) sending_batch: bool,
    pub(crate) requests: Vec<Request>,
    pub(crate) events: Vec<Event>,
}

/// The connection for background work. Nothing relies on its order, so none is kept.
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
    /// The time on the clock of its process.
    pub(crate) sent: Stamp,
    pub(crate) script: Script,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// A caller that has had no place and is the only one at the lock.
    Acquire {
        not_after: Option<Tick>,
    },
    /// All other callers, several at once, with their old places.
    Queue {
        members: Few<(CallerId, Option<Place>)>,
        not_after: Option<Tick>,
    },
    /// With `close`, follows a `CLIENT KILL` of the connection that carried the request.
    Leave {
        abandon: bool,
        close: bool,
    },
    Release(Token),
    Renew(Renewal),
    /// Sent on behalf of the caller's whole process.
    Probe,
}

/// A renewal; a lease of 0 is a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    /// The token of the member that asks.
    pub(crate) token: Token,
    /// The token under which the server knows the grant, if it is a cohort's.
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
    /// The reply to `leave … enter`: the grant to enter with, or the cohort to pass on.
    Left(Option<Found>),
    /// The cohort to pass on.
    Abandoned(Option<Found>),
    Released(Token),
    Renewed(Renewal, Option<Tick>),
    Probed(Option<Found>, bool),
}

/// The acquisition of a caller. Its own phase is not hashed, because the model's phase says more and nothing is
/// refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt(pub(crate) AttemptState);

impl Hash for Attempt {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self(attempt) = self;
        let settled = attempt.is_settled();
        (attempt.offer(), attempt.place(), attempt.missed(), settled).hash(state);
    }
}

/// One call of an annotated function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) phase: Phase,
    /// When its `wait` ends, on the clock of its process.
    pub(crate) wait_until: Tick,
    /// When it began, for the properties.
    pub(crate) began: Tick,
    /// When its request was sent, if the engine may give it up.
    pub(crate) asked: Tick,
    pub(crate) place: Option<Place>,
    /// The order in which it joined the queue, for the properties.
    pub(crate) joined: Option<u8>,
    pub(crate) attempt: Attempt,
    /// The turn that it was last told of and has not read.
    pub(crate) told: Option<Token>,
    /// Whether it goes with the next batch.
    pub(crate) joins: bool,
    /// Whether the session has resent the request and has no answer yet. Until the answer the gate is shut, and the
    /// owner neither enters nor leaves.
    pub(crate) resending: bool,
    /// Whether the connection that carried the newest request still exists; `None` if nothing was sent.
    pub(crate) carried: Option<bool>,
    pub(crate) behind: Option<Behind>,
}

/// How the owner heard of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By {
    Reply,
    /// The reply to a request that was resent.
    Resend,
    Push,
    Probe,
    Leave,
    /// The turn of another member of its cohort ended.
    Pass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Its request is under way, or will be with the next connection.
    Asking,
    /// The reply has arrived, and its future has not been polled since.
    Answered {
        reply: Acquired,
        sent: Stamp,
    },
    /// The engine has given up the grant that the reply may contain, and its future has not been polled since.
    Revoked,
    /// Waits for its turn, or has an offer and waits for the gate or for the engine's renewal.
    Queued,
    /// Renews its turn by itself (`Broken::AnswerSeats`), with the server's answer.
    Confirming {
        token: Token,
        answer: Option<Moment>,
    },
    /// Its body runs.
    Inside(Hold),
    /// Its `wait` is over. The result of leaving the queue decides.
    Leaving {
        since: Tick,
    },
    /// The first token names the grant.
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
    /// The local deadline.
    pub(crate) until: Moment,
    /// The grant stands only for a claim until it is confirmed.
    pub(crate) claim: bool,
    /// When a renewal or a check was last sent.
    pub(crate) tended: Tick,
    /// Whether that request is under way.
    pub(crate) tending: bool,
    pub(crate) by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Left,
    Lost,
    /// The caller goes on as another owner.
    Missed,
    Busy,
    Unreachable,
    Cancelled,
    Crashed {
        inside: bool,
    },
}

/// Work in the background for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Behind {
    /// Waits for the gate, with the offer to give back.
    Gate(Option<Token>),
    /// Leaves over the connection that carried the request, so that the server keeps the order of the two.
    Leave {
        since: Tick,
    },
    /// Closes that connection first, over the home session.
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
    /// Whether it still waits: it has neither entered nor ended.
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

    /// Whether it is to be told of its turn: it waits and has no offer.
    pub(crate) fn is_waiting(&self) -> bool {
        let waits = matches!(
            self.phase,
            Phase::Asking | Phase::Answered { .. } | Phase::Queued
        );
        waits && self.turn().is_none()
    }

    /// The token of the turn that it is offered.
    pub(crate) fn turn(&self) -> Option<Token> {
        self.told.or_else(|| self.attempt.0.offer().map(token_of))
    }

    /// A token of the grant with which it is inside, or which it gives back.
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
