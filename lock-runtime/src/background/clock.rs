//! The local clocks: one for locks on servers, and one for in-process locks.

use std::{
    collections::HashMap,
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use lock_core::{backend::BoxFuture, lease::Moment};
use once_cell::sync::Lazy;
use pin_project_lite::pin_project;
use tokio::{
    runtime::{self, Handle},
    time::{self, Sleep},
};

use crate::background::{calling_runtime, engine, lock};

/// A local clock, by which deadlines are measured.
pub(crate) trait Clock: Send + Sync {
    fn now(&self) -> Moment;

    /// Completes at `deadline`.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;
}

/// A clock that keeps running while the machine is suspended, because the leases on a server continue to run then. On
/// systems other than Linux and Android, `BootClock` is the monotonic clock, which can stop during a suspend.
#[derive(Debug)]
pub(crate) struct BootClock {
    /// The runtime whose timers the clock uses.
    runtime: Handle,
}

impl BootClock {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl Clock for BootClock {
    fn now(&self) -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(CLOCK);
        Moment::new(Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        ))
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let _runtime = self.runtime.enter();
        // The timer uses another clock than `BootClock`. The timer may therefore fire too early, or too late if the
        // machine was suspended, so callers check the time again.
        Box::pin(Timer::new(time::sleep(deadline.since(self.now()))))
    }
}

/// The clock of tokio, which users' tests can pause and advance.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment::new(
            time::Instant::now()
                .into_std()
                .saturating_duration_since(*ORIGIN),
        )
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let Some(instant) = ORIGIN.checked_add(deadline.since_origin()) else {
            return Box::pin(pending());
        };
        let mut runtime = calling_runtime();
        let mut timer = Box::pin(new_timer(instant));
        Box::pin(poll_fn(move |cx| {
            // A timer ends with its runtime, so a caller that is now polled on another runtime gets a new timer.
            if calling_runtime() != runtime {
                runtime = calling_runtime();
                timer.set(new_timer(instant));
            }
            // A timer panics if it is polled after its runtime has ended. The comparison of the runtimes above does not
            // prevent this panic, because a runtime can end while one of its threads polls the caller.
            let polled = catch_unwind(AssertUnwindSafe(|| timer.as_mut().poll(cx)));
            polled.unwrap_or_else(|_| {
                timer.set(engine_timer(instant));
                timer.as_mut().poll(cx)
            })
        }))
    }
}

/// Returns a timer of the calling runtime, because only that runtime knows whether its clock is paused. If the caller
/// is outside of a runtime, or if its runtime has no timers, the timer runs on the engine's thread.
fn new_timer(instant: Instant) -> Timer {
    if has_timer() {
        Timer::new(time::sleep_until(instant.into()))
    } else {
        engine_timer(instant)
    }
}

fn engine_timer(instant: Instant) -> Timer {
    let _engine = engine().enter();
    Timer::new(time::sleep_until(instant.into()))
}

pin_project! {
    /// A timer that contains the panics of the waker that it calls. A runtime calls the wakers of its timers outside of its
    /// tasks, so such a panic would end the runtime: on the engine's thread, all renewals of the process would end.
    struct Timer {
        #[pin]
        sleep: Sleep,
        // The waker of the last poll, and the waker that contains its panics.
        waker: Option<(Waker, Waker)>,
    }
}

impl Timer {
    fn new(sleep: Sleep) -> Self {
        Self { sleep, waker: None }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let known = this.waker.take();
        let known = known.filter(|(waker, _)| waker.will_wake(cx.waker()));
        let (_, contained) = this.waker.insert(known.unwrap_or_else(|| {
            let contained = Arc::new(Contained(cx.waker().clone()));
            (cx.waker().clone(), contained.into())
        }));
        this.sleep.poll(&mut Context::from_waker(contained))
    }
}

/// A waker that contains the panics of another waker. A waker can panic if it polls its caller at once.
struct Contained(Waker);

impl Wake for Contained {
    fn wake(self: Arc<Self>) {
        // If this is the last reference to the other waker, dropping it can drop the caller, which can panic, too.
        let wake = AssertUnwindSafe(move || self.0.wake_by_ref());
        let _ = catch_unwind(wake);
    }
}

// The origin of [`TokioClock`]. The origin lies one hour before the first use of the clock. A test can pause tokio's
// clock before that use, and the paused clock then shows an earlier time than the clock of the system.
static ORIGIN: Lazy<Instant> = Lazy::new(|| {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(3600)).unwrap_or(now)
});

/// Returns whether the calling runtime has timers. On a runtime without timers, tokio panics when a timer is created.
/// The check for timers has to catch this panic, so the check runs only once for each runtime.
fn has_timer() -> bool {
    static TIMERS: Lazy<Mutex<HashMap<runtime::Id, bool>>> = Lazy::new(Mutex::default);
    let Ok(runtime) = Handle::try_current() else {
        return false;
    };
    *lock(&TIMERS)
        .entry(runtime.id())
        .or_insert_with(|| catch_unwind(|| drop(time::sleep(Duration::ZERO))).is_ok())
}
