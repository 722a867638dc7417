//! The two local clocks: one for servers that others share, one for the in-process backend.

use std::{
    collections::HashMap,
    panic::catch_unwind,
    sync::Mutex,
    time::{Duration, Instant},
};

use lock_core::{backend::BoxFuture, lease::Moment};
use once_cell::sync::Lazy;
use tokio::{
    runtime::{self, Handle},
    time,
};

use crate::background::{sync::lock, thread};

/// A local clock, on which deadlines count.
pub(crate) trait Clock: Send + Sync {
    fn now(&self) -> Moment;

    /// Ends at `deadline`.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;
}

/// A clock that runs while the machine is suspended: a lease on a server runs on, too.
#[derive(Debug)]
pub(crate) struct BootClock {
    /// Whose timers it uses.
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
        // A timer may wake early by this clock, after a suspension late: the callers look at the clock again.
        Box::pin(time::sleep(deadline.since(self.now())))
    }
}

/// tokio's clock, which users' tests may pause and advance.
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

    /// Timed by the runtime that calls, whose clock may be paused; by the engine's thread where that has no timer.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let _engine = (!has_timer()).then(|| thread::handle().enter());
        match ORIGIN.checked_add(deadline.since_origin()) {
            Some(instant) => Box::pin(time::sleep_until(instant.into())),
            None => Box::pin(std::future::pending()),
        }
    }
}

// An hour before the first look, because a paused clock starts at its runtime's birth.
static ORIGIN: Lazy<Instant> = Lazy::new(|| {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(3600)).unwrap_or(now)
});

/// Whether the runtime that calls has a timer. tokio answers by a panic, so each runtime is asked once.
fn has_timer() -> bool {
    static TIMERS: Lazy<Mutex<HashMap<runtime::Id, bool>>> = Lazy::new(Mutex::default);
    let Ok(runtime) = Handle::try_current() else {
        return false;
    };
    *lock(&TIMERS)
        .entry(runtime.id())
        .or_insert_with(|| catch_unwind(|| drop(time::sleep(Duration::ZERO))).is_ok())
}
