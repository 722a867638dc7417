//! The turns of the calls that share one hold. Siblings, which are calls nested in the same call, run one after
//! another, in the order in which they request their turns.
//!
//! The turn is offered to the first waiter in the queue, which takes the turn when it is polled. If the waiter does not
//! take the turn within a claim (2 s, or less after a missed offer), the turn is offered to the next waiter. The turn
//! also passes to the next waiter if the body does not begin in time. No thread watches these time limits. Instead,
//! each waiter checks the time limits when it is polled.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use lock_core::{
    backend::Backend,
    lease::{CLAIM, Moment, claim_after},
};
use tokio::sync::Notify;

use crate::background::lock;

/// The turns of the calls at one nesting level. The queue of the calls is created when the first call requests a turn,
/// because most nesting levels never need a queue.
#[derive(Debug, Default)]
pub(crate) struct Turns(OnceLock<Arc<Mutex<Queue>>>);

impl Turns {
    /// Requests a turn for a call. This turn comes after all turns that were requested earlier.
    pub(crate) fn next(&self, backend: &Arc<dyn Backend>) -> Turn {
        let queue = self.0.get_or_init(Arc::default).clone();
        let ticket = lock(&queue).ticket();
        Turn {
            queue,
            ticket,
            backend: backend.clone(),
        }
    }
}

/// A call's turn, or the call's position in the queue if it does not have the turn yet. If this value is dropped, the
/// turn passes to the next waiter, or the call leaves the queue.
#[derive(Debug)]
pub(crate) struct Turn {
    queue: Arc<Mutex<Queue>>,
    ticket: u64,
    backend: Arc<dyn Backend>,
}

impl Turn {
    fn change<T>(&self, change: impl FnOnce(&mut Queue, Moment) -> T) -> T {
        let now = self.backend.now();
        let (result, woken) = {
            let mut queue = lock(&self.queue);
            let result = change(&mut queue, now);
            (result, queue.woken.take())
        };
        // The waiter is notified after the mutex is unlocked, because a waker can poll its task at once, and the task
        // locks the mutex.
        if let Some(look) = woken {
            look.notify_one();
        }
        result
    }

    /// Waits until it is the call's turn. The turn passes to the next call if the body does not begin within a claim
    /// (2 s). A call that has lost its turn can call this method again, and then waits at its old position in the
    /// queue.
    pub(crate) async fn come(&self) {
        let mut caller = Caller::new(self.ticket);
        loop {
            match self.change(|queue, now| queue.look(&mut caller, now)) {
                View::Yours => return,
                View::Waiting(until) => tokio::select! {
                    biased;
                    () = caller.look.notified() => {}
                    () = self.backend.sleep_until(until) => {}
                },
            }
        }
    }

    /// Records that the body begins. Returns `false` if the turn has passed to another call.
    pub(crate) fn begin_body(&self) -> bool {
        self.change(|queue, now| queue.keep_turn(self.ticket, None, now))
    }

    /// Makes the turn pass to the next call if the body has not begun by `until`.
    pub(crate) fn wait_for_body(&self, until: Moment) {
        self.change(|queue, now| queue.keep_turn(self.ticket, Some(until), now));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.change(|queue, now| queue.leave(self.ticket, now));
    }
}

/// The answer to a call that checks whether it has the turn.
#[derive(Debug, PartialEq, Eq)]
enum View {
    Yours,
    /// Another call has the turn. The waiting call checks again at this moment at the latest.
    Waiting(Moment),
}

/// The call that has the turn, and the calls that wait for the turn.
#[derive(Debug, Default)]
struct Queue {
    next_ticket: u64,
    /// The call that has the turn, or to which the turn is offered. While `current` is `None`, no call waits.
    current: Option<Current>,
    /// The waiting calls, ordered by ticket: a number that each call gets when it requests its turn.
    waiters: VecDeque<Waiter>,
    /// Wakes the waiter that was last offered the turn; `None` once that waiter has been notified.
    woken: Option<Arc<Notify>>,
}

#[derive(Debug)]
struct Current {
    ticket: u64,
    /// The moment at which the turn passes to the next call; `None` once the body has begun.
    until: Option<Moment>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    look: Arc<Notify>,
    /// How long an offer to this waiter lasts before it passes to the next waiter.
    claim: Duration,
}

/// A call that waits for its turn.
#[derive(Debug)]
struct Caller {
    ticket: u64,
    look: Arc<Notify>,
    /// How often the call has joined the queue: once at first, and again after each offer that it missed.
    queued: u32,
}

impl Caller {
    fn new(ticket: u64) -> Self {
        Self {
            ticket,
            look: Arc::default(),
            queued: 0,
        }
    }
}

impl Queue {
    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Returns the index of the waiter with this ticket. If no waiter has this ticket, returns as an error the index at
    /// which to insert a waiter with this ticket.
    fn place(&self, ticket: u64) -> Result<usize, usize> {
        self.waiters
            .binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }

    /// Checks whether this caller has the turn. A caller that does not have the turn joins the queue, unless it is in
    /// the queue already.
    fn look(&mut self, caller: &mut Caller, now: Moment) -> View {
        let ticket = caller.ticket;
        self.settle(now);
        let current = self.current.get_or_insert(Current {
            ticket,
            until: None,
        });
        if current.ticket == ticket {
            current.until = Some(now + CLAIM);
            return View::Yours;
        }
        // The other waiters might not be polled, so each waiter checks again within a claim (2 s), or when the current
        // offer ends if the offer ends earlier.
        let soon = now + CLAIM;
        let until = current.until.map_or(soon, |until| until.min(soon));
        if let Err(place) = self.place(ticket) {
            let waiter = Waiter {
                ticket,
                look: caller.look.clone(),
                claim: claim_after(caller.queued),
            };
            caller.queued += 1;
            self.waiters.insert(place, waiter);
        }
        View::Waiting(until)
    }

    /// Sets the moment at which the turn passes to the next call; `None` once the body has begun. Returns `false` if
    /// the call with this ticket does not have the turn.
    fn keep_turn(&mut self, ticket: u64, until: Option<Moment>, now: Moment) -> bool {
        self.settle(now);
        let current = self.current.as_mut();
        let current = current.filter(|current| current.ticket == ticket);
        current.map(|current| current.until = until).is_some()
    }

    /// Passes the turn to the next waiter if the turn's time limit is over.
    fn settle(&mut self, now: Moment) {
        let current = self.current.as_ref();
        if current.is_some_and(|current| current.until.is_some_and(|until| until <= now)) {
            self.pass_on(now);
        }
    }

    /// Offers the turn to the next waiter, if there is one.
    fn pass_on(&mut self, now: Moment) {
        self.current = self.waiters.pop_front().map(|waiter| {
            self.woken = Some(waiter.look);
            Current {
                ticket: waiter.ticket,
                until: Some(now + waiter.claim),
            }
        });
    }

    fn leave(&mut self, ticket: u64, now: Moment) {
        let current = self.current.as_ref();
        if current.is_some_and(|current| current.ticket == ticket) {
            self.pass_on(now);
        } else if let Ok(place) = self.place(ticket) {
            self.waiters.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds))
    }

    /// Returns a queue and its tickets. The call with the first ticket has the turn, and the other calls wait.
    fn queue<const N: usize>() -> (Queue, [u64; N]) {
        let mut queue = Queue::default();
        let tickets = std::array::from_fn(|_| queue.ticket());
        for ticket in tickets {
            queue.look(&mut Caller::new(ticket), at(0));
        }
        assert!(queue.keep_turn(tickets[0], None, at(0)));
        (queue, tickets)
    }

    fn look(queue: &mut Queue, ticket: u64, now: Moment) -> View {
        queue.look(&mut Caller::new(ticket), now)
    }

    #[test]
    fn a_turn_that_has_begun_is_kept_until_it_is_left() {
        let (mut queue, [first, second, third]) = queue();
        assert_eq!(look(&mut queue, second, at(60)), View::Waiting(at(62)));
        queue.leave(first, at(60));
        assert_eq!(look(&mut queue, third, at(61)), View::Waiting(at(62)));
        assert_eq!(look(&mut queue, second, at(61)), View::Yours);
        assert!(queue.keep_turn(second, None, at(61)));
        queue.leave(second, at(61));
        queue.leave(third, at(61));
        assert!(queue.current.is_none() && queue.waiters.is_empty());
    }

    #[test]
    fn offers_that_are_not_taken_pass_on_one_after_the_other() {
        let (mut queue, [first, second, third, fourth]) = queue();
        queue.leave(first, at(10));
        assert_eq!(look(&mut queue, fourth, at(12)), View::Waiting(at(14)));
        assert_eq!(look(&mut queue, fourth, at(14)), View::Yours);
        // Callers that are polled late queue in the order of their tickets.
        let fifth = queue.ticket();
        for late in [fifth, third, second] {
            assert_eq!(look(&mut queue, late, at(15)), View::Waiting(at(16)));
        }
        assert!(queue.keep_turn(fourth, None, at(15)));
        for (next, now) in [(second, 20), (third, 21), (fifth, 22)] {
            let inside = queue.current.as_ref().unwrap().ticket;
            queue.leave(inside, at(now));
            assert_eq!(look(&mut queue, next, at(now)), View::Yours);
        }
    }

    #[test]
    fn no_body_begins_in_a_turn_that_has_passed_on() {
        let (mut queue, [first, second, third]) = queue();
        queue.leave(first, at(10));
        assert_eq!(look(&mut queue, second, at(10)), View::Yours);
        // The second call waits for another lock, and keeps its turn until 30 s.
        assert!(queue.keep_turn(second, Some(at(30)), at(10)));
        assert_eq!(look(&mut queue, third, at(29)), View::Waiting(at(30)));
        assert!(!queue.keep_turn(second, None, at(30)));
        assert_eq!(look(&mut queue, third, at(30)), View::Yours);
        // The second call leaves after its turn has passed to the third call. The third call keeps the turn.
        queue.leave(second, at(31));
        assert!(queue.keep_turn(third, None, at(31)));
    }

    #[test]
    fn a_turn_that_is_over_is_the_next_callers() {
        let (mut queue, [first]) = queue();
        assert!(queue.keep_turn(first, Some(at(5)), at(0)));
        let second = queue.ticket();
        assert_eq!(look(&mut queue, second, at(4)), View::Waiting(at(5)));
        queue.leave(second, at(4));
        assert!(!queue.keep_turn(first, None, at(6)));
        assert_eq!(look(&mut queue, first, at(6)), View::Yours);
    }

    #[test]
    fn a_caller_that_is_polled_rarely_delays_by_little_more_than_a_claim() {
        let (mut queue, [first, rare]) = queue();
        let mut rarely = Caller {
            queued: 1,
            ..Caller::new(rare)
        };
        let (mut now, mut delays) = (at(10), Duration::ZERO);
        queue.leave(first, now);
        for _ in 0..4 {
            let until = queue.current.as_ref().unwrap().until.unwrap();
            delays += until.since(now);
            let prompt = queue.ticket();
            assert_eq!(look(&mut queue, prompt, until), View::Yours);
            queue.look(&mut rarely, until);
            now = until + Duration::from_secs(1);
            queue.leave(prompt, now);
        }
        assert!(delays < CLAIM + CLAIM / 8, "{delays:?}");
    }
}
