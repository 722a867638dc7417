//! The state of an acquisition, and its next step. This file only makes decisions: it uses no I/O, no clock and no
//! tokio.
//!
//! # Rules
//! 1. Only two events give the acquisition the lock. One event is the server's grant in the answer to its own request. The
//!    other event is its turn in a cohort. A cohort consists of waiters that share one grant and take turns.
//! 2. An acquisition is settled when it has its final answer. It then has no place in the queue and no turn to give back, and
//!    later events do not change it.
//! 3. If a request is not answered, the server may have granted the lock. If the server then refuses a later request,
//!    the acquisition fails, but is not settled. If an acquisition is dropped before it is settled, the engine releases
//!    the lock that the server may have granted.
//! 4. An owner name is the random name that identifies an acquisition on the server. An acquisition starts over if it misses
//!    its turn, needs another session, or is repeated because its caller has not taken the lock in time. It then continues
//!    under a new owner name, which takes over the place of the old name in the queue. Answers to requests under the
//!    previous owner name have no effect on the new owner name.

use lock_core::{
    backend::{Answer, BackendError},
    lease::Grant,
};

/// The phase of the acquisition under its current owner name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// No request was sent under this owner name.
    Unsent,
    /// The acquisition itself, not its session, has sent a request to the server, and has no answer.
    Asked,
    /// The caller waits for its turn.
    Waiting,
    /// The acquisition has its final answer, and has neither a place in the queue nor a turn to give back.
    Settled,
}

/// An event in the life of an acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The caller itself sends a request.
    Asks,
    /// The session sends the caller's request, in a batch with the requests of other callers.
    Joins,
    /// The answer to the caller's own request grants the lock, or the caller has its turn in a cohort.
    Granted(Grant),
    /// The answer to the caller's own request says that the lock is not free, and that the caller is not queued.
    Busy,
    /// The answer to the caller's own request says that the caller is queued, or that it was granted the lock while it
    /// was queued.
    Queued,
    /// The server cannot carry out the acquisition's request now, or the request reached the server too late.
    NotReady,
    /// The server cannot carry out the caller's own request now, and the caller has no other unanswered request. If no
    /// connection broke before, the server has carried out no request under the current owner name.
    NotCarriedOut,
    /// The connection broke before the answer came, so the server may have carried out the acquisition's request.
    Broken,
    /// The server refuses the acquisition's request, with this error.
    Refused(BackendError),
    /// The session has removed the caller from its list of waiters, and has given it no turn.
    Dismissed,
    /// The caller's turn has come, and has passed: the caller's runtime did not run, the server has lost the grant, or its
    /// local deadline has passed.
    Missed,
    /// Another server stores the lock now, so the caller needs the session with that server.
    Moved,
    /// The caller leaves the queue before its session has sent its request.
    Unsent,
    /// The server answers the caller's request to leave: the caller has no place in the queue and does not hold the
    /// lock.
    Left {
        /// Whether the caller still had a place in the queue when its request to leave was carried out.
        was_queued: bool,
    },
}

/// The next action of an acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sends the acquisition's request to the server.
    Ask,
    /// Sends the acquisition's request after a pause.
    AskLater,
    /// Tries once to get the lock under a new owner name, without queueing.
    AskOnce,
    /// Awaits the caller's turn.
    AwaitTurn,
    /// Gives back the turn or the place of the current owner name in the background, and sends a request under a new
    /// owner name.
    StartOver,
    /// Starts over when the caller is polled again.
    Miss,
    /// Returns this answer to the caller.
    Return(Answer),
    /// Fails the acquisition with this error.
    Fail(BackendError),
    /// Takes no new step: the current action continues.
    Nothing,
}

/// The state of one acquisition. An acquisition that misses its turn continues under a new owner name, and keeps this
/// state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Acquisition {
    phase: Phase,
    /// Whether a connection broke before the answer to a request under the current owner name came. The server may have
    /// carried out that request.
    unsure: bool,
    /// Whether an answer to the caller's newest request proves that the server has carried out no request under the
    /// current owner name.
    not_carried_out: bool,
}

impl Acquisition {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Unsent,
            unsure: false,
            not_carried_out: false,
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.phase == Phase::Settled
    }

    /// Returns whether a refusal of the caller's own request proves that the acquisition left nothing on the server.
    pub(crate) fn is_refusal_final(&self) -> bool {
        !self.unsure && self.phase == Phase::Asked
    }

    /// Returns whether an answer proves that no request of the current owner name has changed anything on the server.
    pub(crate) fn is_not_carried_out(&self) -> bool {
        self.not_carried_out
    }

    /// Applies an event, and returns the next step of the acquisition.
    pub(crate) fn on(&mut self, event: Event) -> Step {
        if self.phase == Phase::Settled {
            return Step::Nothing;
        }
        match event {
            Event::Asks => {
                self.phase = Phase::Asked;
                self.not_carried_out = false;
                Step::Nothing
            }
            Event::Joins => {
                self.phase = Phase::Waiting;
                self.not_carried_out = false;
                Step::AwaitTurn
            }
            Event::Granted(grant) => self.settle(Answer::Granted(grant)),
            Event::Busy => self.settle(Answer::Busy),
            Event::Queued => {
                self.phase = Phase::Waiting;
                Step::AwaitTurn
            }
            Event::NotReady => Step::AskLater,
            Event::NotCarriedOut => {
                self.not_carried_out = self.is_refusal_final();
                Step::AskLater
            }
            Event::Broken => {
                self.unsure = true;
                Step::Ask
            }
            Event::Refused(error) => {
                if self.is_refusal_final() {
                    self.phase = Phase::Settled; // the server has carried out no request
                }
                Step::Fail(error)
            }
            Event::Dismissed => Step::Ask,
            Event::Missed => Step::Miss,
            Event::Moved => Step::StartOver,
            Event::Unsent => {
                self.phase = Phase::Settled;
                Step::AskOnce
            }
            Event::Left { was_queued } => {
                // A caller that had no place does not know whether the lock is free. The connection can have skipped the
                // caller's request, if the sender stopped waiting before the request was written. A release that comes
                // after the end of the caller's `wait` removes the caller from the queue.
                self.phase = Phase::Settled;
                if was_queued {
                    Step::Nothing
                } else {
                    Step::AskOnce
                }
            }
        }
    }

    /// Switches to a new owner name.
    pub(crate) fn start_over(&mut self) {
        if self.phase != Phase::Settled {
            self.phase = Phase::Unsent;
            self.unsure = false;
            self.not_carried_out = false;
        }
    }

    /// Begins again under a new owner name, after the caller has not taken its grant in time.
    pub(crate) fn again(&mut self) {
        self.phase = Phase::Unsent;
        self.start_over();
    }

    fn settle(&mut self, answer: Answer) -> Step {
        self.phase = Phase::Settled;
        Step::Return(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lock_core::fencing::FencingToken;

    use super::*;

    fn grant(token: u64) -> Grant {
        Grant {
            token: FencingToken::new(token),
            valid_until: None,
            validity: Duration::from_secs(1),
            queued: true,
            handoff: None,
        }
    }

    fn refused() -> BackendError {
        BackendError::Refused("OOM".into())
    }

    fn all_events() -> Vec<Event> {
        vec![
            Event::Asks,
            Event::Joins,
            Event::Granted(grant(1)),
            Event::Busy,
            Event::Queued,
            Event::NotReady,
            Event::NotCarriedOut,
            Event::Broken,
            Event::Refused(refused()),
            Event::Dismissed,
            Event::Missed,
            Event::Moved,
            Event::Unsent,
            Event::Left { was_queued: true },
            Event::Left { was_queued: false },
        ]
    }

    /// Returns the state of a new acquisition after these events.
    fn after(events: &[Event]) -> Acquisition {
        let mut state = Acquisition::new();
        for event in events {
            state.on(event.clone());
        }
        state
    }

    fn unsent() -> Acquisition {
        Acquisition::new()
    }

    fn asked() -> Acquisition {
        after(&[Event::Asks])
    }

    fn waiting() -> Acquisition {
        after(&[Event::Joins])
    }

    #[test]
    fn an_answer_to_its_own_request_settles_it() {
        for (event, answer) in [
            (Event::Granted(grant(3)), Answer::Granted(grant(3))),
            (Event::Busy, Answer::Busy),
        ] {
            let mut state = asked();
            assert_eq!(state.on(event), Step::Return(answer));
            assert!(state.is_settled());
        }
    }

    #[test]
    fn only_an_answer_proves_that_nothing_was_carried_out() {
        let proof = |events: &[Event]| after(events).is_not_carried_out();
        assert!(!proof(&[]));
        assert!(proof(&[Event::Asks, Event::NotCarriedOut]));
        assert!(!proof(&[Event::Asks]));
        assert!(!proof(&[Event::Asks, Event::NotCarriedOut, Event::Asks]));
        assert!(!proof(&[Event::Asks, Event::NotReady]));
        assert!(!proof(&[Event::Joins, Event::NotCarriedOut]));
        let joined = [Event::Asks, Event::NotCarriedOut, Event::Joins];
        assert!(!proof(&joined));
        let broken = [
            Event::Asks,
            Event::Broken,
            Event::Asks,
            Event::NotCarriedOut,
        ];
        assert!(!proof(&broken));
    }

    #[test]
    fn a_settled_acquisition_ignores_everything() {
        let settled = after(&[Event::Asks, Event::Busy]);
        for event in all_events() {
            let mut state = settled.clone();
            assert_eq!(state.on(event.clone()), Step::Nothing, "{event:?}");
            state.start_over();
            assert_eq!(state, settled, "{event:?}");
        }
    }

    #[test]
    fn nothing_but_an_answer_or_its_turn_lets_it_in() {
        for state in [unsent(), asked(), waiting()] {
            for event in all_events() {
                let step = state.clone().on(event.clone());
                let is_in = matches!(step, Step::Return(Answer::Granted(_)));
                let may = matches!(event, Event::Granted(_));
                assert_eq!(is_in, may, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_caller_that_is_queued_awaits_its_turn_and_takes_it() {
        let mut state = unsent();
        state.on(Event::Asks);
        assert_eq!(state.on(Event::Queued), Step::AwaitTurn);
        let inside = Step::Return(Answer::Granted(grant(7)));
        assert_eq!(state.on(Event::Granted(grant(7))), inside);
        assert!(state.is_settled());
    }

    #[test]
    fn a_caller_that_joins_others_awaits_its_turn() {
        assert_eq!(unsent().on(Event::Joins), Step::AwaitTurn);
    }

    #[test]
    fn a_missed_turn_leaves_something_to_give_back() {
        let mut state = waiting();
        assert_eq!(state.on(Event::Missed), Step::Miss);
        assert!(!state.is_settled());
    }

    #[test]
    fn a_moved_lock_starts_over() {
        for mut state in [asked(), waiting()] {
            assert_eq!(state.on(Event::Moved), Step::StartOver);
        }
    }

    #[test]
    fn a_request_that_cannot_be_carried_out_is_sent_again() {
        for state in [asked(), waiting()] {
            assert_eq!(state.clone().on(Event::NotReady), Step::AskLater);
            assert_eq!(state.clone().on(Event::Broken), Step::Ask);
            assert_eq!(state.clone().on(Event::Dismissed), Step::Ask);
        }
    }

    #[test]
    fn a_refusal_settles_what_was_certainly_not_carried_out() {
        let mut state = asked();
        assert_eq!(state.on(Event::Refused(refused())), Step::Fail(refused()));
        assert!(state.is_settled());
    }

    #[test]
    fn a_refusal_after_a_broken_request_leaves_something_to_give_back() {
        let mut state = after(&[Event::Asks, Event::Broken, Event::Asks]);
        assert_eq!(state.on(Event::Refused(refused())), Step::Fail(refused()));
        assert!(!state.is_settled());
        // The unanswered request was sent under the previous owner name, so there is nothing to give back under the new
        // name.
        state.start_over();
        state.on(Event::Asks);
        state.on(Event::Refused(refused()));
        assert!(state.is_settled());
    }

    #[test]
    fn a_refusal_of_the_batch_that_carries_it_leaves_something_to_give_back() {
        let mut state = waiting();
        assert_eq!(state.on(Event::Refused(refused())), Step::Fail(refused()));
        assert!(!state.is_settled());
    }

    #[test]
    fn a_caller_that_has_left_is_settled() {
        for mut state in [asked(), waiting()] {
            assert_eq!(state.on(Event::Left { was_queued: true }), Step::Nothing);
            assert!(state.is_settled());
        }
    }

    #[test]
    fn a_caller_that_leaves_and_has_no_place_tries_once() {
        let left = Event::Left { was_queued: false };
        assert_eq!(waiting().on(Event::Unsent), Step::AskOnce);
        for mut state in [unsent(), asked(), waiting()] {
            assert_eq!(state.on(left.clone()), Step::AskOnce);
            assert!(state.is_settled());
        }
    }

    #[test]
    fn a_second_request_follows_one_without_an_answer() {
        let mut state = after(&[Event::Asks, Event::Broken]);
        assert_eq!(state.on(Event::Asks), Step::Nothing);
        assert_eq!(state.on(Event::Queued), Step::AwaitTurn);
    }
}
