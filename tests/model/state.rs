//! A state of the model: the server, the processes with their connections, the callers, and what may still go wrong.

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

/// A stretch of time: about a heartbeat.
pub(crate) type Tick = i8;
/// A moment of a process's clock, in ms.
pub(crate) type Stamp = u16;
pub(crate) type ProcessId = usize;
/// A caller is one acquisition, and so one owner.
pub(crate) type CallerId = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The time that the processes' clocks follow.
    pub(crate) now: Tick,
    pub(crate) server: Server,
    pub(crate) processes: Vec<Process>,
    pub(crate) callers: Vec<Caller>,
    /// How much of what can go wrong still may.
    pub(crate) faults: Faults,
    pub(crate) observed: Observed,
}

/// What an observer knows who sees everything, for the properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Observed {
    /// The newest grant whose push was lost.
    pub(crate) lost_push: Option<Token>,
    /// The newest token that was given.
    pub(crate) token: Token,
    pub(crate) token_fell: bool,
    /// The newest token that a body has begun with.
    pub(crate) begun: Token,
    pub(crate) begun_fell: bool,
    /// A process was killed, and the lock stands for longer than the lease of who was inside.
    pub(crate) outlived: bool,
    /// Who entered, and who had queued before and was still waiting.
    pub(crate) overtaken: Option<(CallerId, CallerId)>,
    /// How many ticks in turn somebody alive waited for a lock that nobody held, or in no queue, and nothing was late.
    pub(crate) neglected: u8,
    /// A waiter that could not be told was given the lock.
    pub(crate) unheard: bool,
    /// A dead waiter was passed over.
    pub(crate) skipped: bool,
    /// A cohort let a member in at or after its local deadline.
    pub(crate) seated_late: bool,
    /// The answer to a renewal counted for a member without the turn.
    pub(crate) answered_astray: bool,
    /// A member of a cohort that had left was passed over.
    pub(crate) passed_over: bool,
    /// An offer was passed on that nobody took.
    pub(crate) missed: bool,
    /// A reply that nobody read was given up.
    pub(crate) revoked: bool,
    /// A cohort was lost, and members of it queued again.
    pub(crate) lost_cohort: bool,
    /// A cohort was released of which nobody waited any more when it was heard of.
    pub(crate) nobody_left: bool,
    /// A cohort that was known, or over, was described once more.
    pub(crate) told_again: bool,
}

/// One process: one session (`session.rs`) for its callers, and the home session for what goes on in the background.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) alive: bool,
    /// How far its clock has fallen behind, in ms.
    pub(crate) lag: u8,
    pub(crate) main: Session,
    /// What the server still knows of a connection that is no more: a subscriber, and requests not read yet.
    pub(crate) old: Option<Vec<Request>>,
    pub(crate) home: Home,
    /// The newest grant that its callers share, and whose turn it is.
    pub(crate) entry: Option<Entry>,
    /// Releases of cohorts in the background, and when they are given up.
    pub(crate) letting_go: Vec<(Token, Tick)>,
    /// Whether the heartbeat of this tick has happened, and whether it still waits for its answer.
    pub(crate) probed: bool,
    pub(crate) probing: bool,
}

/// A cohort as the registry of its process has it, and what the model alone notes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) cohort: Cohort,
    /// Whether the server has been asked to renew the offer.
    pub(crate) renewing: bool,
    /// When the turn was offered.
    pub(crate) since: Tick,
    /// How its first owner heard of it.
    pub(crate) by: By,
}

/// What plays no part any longer would only tell equal states apart: of a cohort that is over its name counts alone.
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
    /// When the newest command was sent whose reply has come (`Health`).
    pub(crate) answered: Stamp,
    /// Whether a batch is under way.
    pub(crate) sending_batch: bool,
    pub(crate) requests: Vec<Request>,
    pub(crate) events: Vec<Event>,
}

/// The connection of what goes on in the background. No order is relied upon, so none is kept.
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
    /// By the clock of its process.
    pub(crate) sent: Stamp,
    pub(crate) script: Script,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// A caller that has had no place, and is alone at the lock.
    Acquire {
        not_after: Option<Tick>,
    },
    /// All others, several at once, with the places that they have had.
    Queue {
        members: Few<(CallerId, Option<Place>)>,
        not_after: Option<Tick>,
    },
    /// With `close`, after a `CLIENT KILL` of the connection that carried the request.
    Leave {
        abandon: bool,
        close: bool,
    },
    Release(Token),
    Renew(Renewal),
    /// On behalf of the caller's whole process.
    Probe,
}

/// A renewal, or with a lease of 0 a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    /// Of the member that asks.
    pub(crate) token: Token,
    /// The token by which the server knows the grant, if it is a cohort's.
    pub(crate) known: Option<Token>,
    pub(crate) lease: Tick,
}

/// What a process hears from the server.
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
    /// To `leave … enter`: the grant to enter with, or the cohort to pass on.
    Left(Option<Found>),
    /// The cohort to pass on.
    Abandoned(Option<Found>),
    Released(Token),
    Renewed(Renewal, Option<Tick>),
    Probed(Option<Found>, bool),
}

/// The acquisition of a caller. The model's phase says more of it than its own, and nothing is refused, so that it is
/// hashed without.
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
    /// When its `wait` ends, by the clock of its process.
    pub(crate) wait_until: Tick,
    /// When it began, for the properties.
    pub(crate) began: Tick,
    /// When its request was sent, where the engine may give it up.
    pub(crate) asked: Tick,
    pub(crate) place: Option<Place>,
    /// As which it joined the queue, for the properties.
    pub(crate) joined: Option<u8>,
    pub(crate) attempt: Attempt,
    /// The turn that it was told of last, and has not read.
    pub(crate) told: Option<Token>,
    /// Goes with the next batch.
    pub(crate) joins: bool,
    /// Whether the session has sent the request again, and not been answered: until then the gate is shut,
    /// and the owner neither enters nor leaves.
    pub(crate) resending: bool,
    /// Whether the connection that carried the newest request still stands; none if nothing was sent.
    pub(crate) carried: Option<bool>,
    pub(crate) behind: Option<Behind>,
}

/// How the owner heard of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By {
    Reply,
    /// The reply to a request that was sent again.
    Resend,
    Push,
    Probe,
    Leave,
    /// Another member of its cohort was through.
    Pass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Its request is under way, or will be with the next connection.
    Asking,
    /// The reply has come, and its future was not polled since.
    Answered {
        reply: Acquired,
        sent: Stamp,
    },
    /// The engine has given up what the reply may have granted, and its future was not polled since.
    Revoked,
    /// Waits for its turn, or has an offer and waits for the gate or for the engine's renewal.
    Queued,
    /// Renews its turn by itself (`Broken::AnswerSeats`), with what the server has answered.
    Confirming {
        token: Token,
        answer: Option<Moment>,
    },
    /// Its body runs.
    Inside(Hold),
    /// Its `wait` is over; leaving the queue decides.
    Leaving {
        since: Tick,
    },
    /// The grant is named by its first token.
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
    /// Stands for a claim only, until it is confirmed.
    pub(crate) claim: bool,
    /// When a renewal or a check was last sent.
    pub(crate) tended: Tick,
    /// Whether that is under way.
    pub(crate) tending: bool,
    pub(crate) by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Left,
    Lost,
    /// It goes on as another owner.
    Missed,
    Busy,
    Unreachable,
    Cancelled,
    Crashed {
        inside: bool,
    },
}

/// What goes on behind the caller's back.
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
    /// Has neither entered nor been told.
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

    /// Whether it is to be told of its turn: it has not been, and has not left.
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

    /// A token of the grant that it is inside with, or gives back.
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
