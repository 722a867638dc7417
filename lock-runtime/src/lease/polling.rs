//! Notices bodies that block their threads: a body that is being polled for two seconds does not notice the loss of its
//! lease. Each thread records the hold whose body it polls, and a task of the engine looks at these records twice a second.

use std::{
    cell::OnceCell,
    sync::{Arc, Mutex, Weak},
};

use once_cell::sync::Lazy;
use tokio::time::{Instant, sleep};

use crate::{
    background::{engine, isolated, lock, parking::Parking},
    lease::hold::HoldState,
    limits,
};

/// The threads that have polled a body, and the engine's task that watches them.
static WATCH: Lazy<Watch> = Lazy::new(|| {
    engine().spawn(watch());
    Watch::default()
});

thread_local! {
    static THREAD: OnceCell<Arc<Thread>> = const { OnceCell::new() };
}

#[derive(Default)]
struct Watch {
    threads: Mutex<Vec<Weak<Thread>>>,
    /// Lets the engine's task sleep while no thread polls a body.
    parking: Parking,
}

impl Watch {
    /// Returns the threads that still exist.
    fn threads(&self) -> Vec<Arc<Thread>> {
        let mut threads = lock(&self.threads);
        threads.retain(|thread| thread.strong_count() > 0);
        threads.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A thread, and the innermost body that it polls.
#[derive(Default)]
struct Thread(Mutex<Option<Polled>>);

struct Polled {
    hold: Arc<HoldState>,
    /// When the engine first saw this poll.
    seen: Option<Instant>,
}

/// The poll of a body. Dropping this value ends the poll.
#[derive(Default)]
pub(crate) struct Poll {
    thread: Option<Arc<Thread>>,
    outer: Option<Polled>,
}

/// Records that this thread polls the body of `hold`, until the returned value is dropped.
#[must_use = "the poll lasts until the value is dropped"]
#[inline(never)] // Nested calls add the stack frames of their polls, so these stay small.
pub(crate) fn begin(hold: &Arc<HoldState>) -> Poll {
    let own = || {
        THREAD.try_with(|thread| {
            let own = thread.get_or_init(|| {
                let thread = Arc::<Thread>::default();
                lock(&WATCH.threads).push(Arc::downgrade(&thread));
                thread
            });
            own.clone()
        })
    };
    // A simulated process has a clock of its own. A thread that is exiting has no record.
    let is_simulated = hold.host().context().is_simulated();
    let Some(thread) = (!is_simulated).then(own).and_then(Result::ok) else {
        return Poll::default();
    };
    let polled = Polled {
        hold: hold.clone(),
        seen: None,
    };
    let outer = lock(&thread.0).replace(polled);
    WATCH.parking.watch();
    Poll {
        thread: Some(thread),
        outer,
    }
}

impl Drop for Poll {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            let mut outer = self.outer.take();
            // The poll of an inner body shows that the outer body has made progress.
            if let Some(outer) = &mut outer {
                outer.seen = None;
            }
            let ended = std::mem::replace(&mut *lock(&thread.0), outer);
            drop(ended);
        }
    }
}

/// Watches the threads for as long as the process lives.
async fn watch() {
    loop {
        let is_idle = || {
            let threads = WATCH.threads();
            threads.iter().all(|thread| lock(&thread.0).is_none())
        };
        WATCH.parking.park(is_idle).await;
        sleep(limits::POLL_LOOK).await;
        for thread in WATCH.threads() {
            let long = {
                let mut polled = lock(&thread.0);
                polled.as_mut().and_then(|polled| {
                    let seen = *polled.seen.get_or_insert_with(Instant::now);
                    (seen.elapsed() >= limits::LONG_POLL).then(|| polled.hold.clone())
                })
            };
            if let Some(hold) = long {
                isolated(|| hold.warn_of_long_poll());
            }
        }
    }
}
