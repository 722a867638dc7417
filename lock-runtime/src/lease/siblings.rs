//! Re-entry: the turns that siblings take inside one hold, first come, first served.
//!
//! A turn is offered to the first in the queue, which takes it at the instant of its poll. An offer that is not taken
//! within a claim passes on, and so does a turn whose body has not begun in time. No thread watches: each waiter does.

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

use crate::background::sync::lock;

/// The turns of the calls nested at one level. Most levels have none.
#[derive(Debug, Default)]
pub(crate) struct Turns(OnceLock<Arc<Mutex<Queue>>>);

impl Turns {
    /// A turn that is still to come, behind those that were asked for before.
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

/// The turn of one call, once it has come. Dropped, it passes on.
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
        // When the mutex is free: a waker may run its caller at once.
        if let Some(look) = woken {
            look.notify_one();
        }
        result
    }

    /// Waits for it. It passes on if its body does not begin within a claim. The call may wait for it again then, at its
    /// old place.
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

    /// The body of the call begins. False if the turn has passed on.
    pub(crate) fn begin_body(&self) -> bool {
        self.change(|queue, now| queue.keep_turn(self.ticket, None, now))
    }

    /// The body of the call begins later: the turn passes on if it has not by then.
    pub(crate) fn wait_for_body(&self, until: Moment) {
        self.change(|queue, now| queue.keep_turn(self.ticket, Some(until), now));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.change(|queue, now| queue.leave(self.ticket, now));
    }
}

/// What a call finds when it looks for its turn.
#[derive(Debug, PartialEq, Eq)]
enum View {
    Yours,
    /// Not yet. The call looks again then.
    Waiting(Moment),
}

/// Those who have a turn, and those who wait for one.
#[derive(Debug, Default)]
struct Queue {
    next_ticket: u64,
    /// Whose turn it is. Nobody waits where it is nobody's.
    current: Option<Current>,
    /// In the order of their tickets.
    waiters: VecDeque<Waiter>,
    /// Whom the turn was offered to last, until it is told.
    woken: Option<Arc<Notify>>,
}

#[derive(Debug)]
struct Current {
    ticket: u64,
    /// When the turn passes on; none once the body has begun.
    until: Option<Moment>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    look: Arc<Notify>,
    /// How long an offer to it stands.
    claim: Duration,
}

/// One that looks for its turn.
#[derive(Debug)]
struct Caller {
    ticket: u64,
    look: Arc<Notify>,
    /// How often it was queued: once, and again for each offer that it missed.
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

    /// Where the waiter with this ticket stands, or would stand.
    fn place(&self, ticket: u64) -> Result<usize, usize> {
        self.waiters
            .binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }

    /// Checks whether it is this caller's turn. If not, the caller is queued, unless it is in the queue already.
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
        // The others may not be polled. So each waiter looks before an offer can end, and again at its end.
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

    /// Says until when the turn is kept for a body that has not begun. False if it is not the turn of this ticket.
    fn keep_turn(&mut self, ticket: u64, until: Option<Moment>, now: Moment) -> bool {
        self.settle(now);
        let current = self.current.as_mut();
        let current = current.filter(|current| current.ticket == ticket);
        current.map(|current| current.until = until).is_some()
    }

    /// Lets a turn pass on whose time is over.
    fn settle(&mut self, now: Moment) {
        let current = self.current.as_ref();
        if current.is_some_and(|current| current.until.is_some_and(|until| until <= now)) {
            self.pass_on(now);
        }
    }

    /// Offers the turn to the next one, if anybody waits.
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

    /// A queue: the first of these tickets is inside, and the others wait.
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
        // Late callers return to their old places.
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
        // It waits for something else, by then at most.
        assert!(queue.keep_turn(second, Some(at(30)), at(10)));
        assert_eq!(look(&mut queue, third, at(29)), View::Waiting(at(30)));
        assert!(!queue.keep_turn(second, None, at(30)));
        assert_eq!(look(&mut queue, third, at(30)), View::Yours);
        // A late departure takes the turn from nobody.
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
