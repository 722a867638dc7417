//! The local clocks: one for shared servers, one for the in-process backend.

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

/// A local clock, which deadlines refer to.
pub(crate) trait Clock: Send + Sync {
    fn now(&self) -> Moment;

    /// Completes at `deadline`.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;
}

/// A clock that keeps running while the machine is suspended, as a lease on a server does.
#[derive(Debug)]
pub(crate) struct BootClock {
    /// The runtime whose timers it uses.
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
        // A timer may fire early by this clock, or late after a suspension. Callers check the clock again.
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

    /// Uses the timer of the calling runtime, whose clock may be paused. If that runtime has no timer, uses the
    /// engine's thread.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let _engine = (!has_timer()).then(|| thread::handle().enter());
        match ORIGIN.checked_add(deadline.since_origin()) {
            Some(instant) => Box::pin(time::sleep_until(instant.into())),
            None => Box::pin(std::future::pending()),
        }
    }
}

// One hour before first use, because a paused clock starts when its runtime is created.
static ORIGIN: Lazy<Instant> = Lazy::new(|| {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(3600)).unwrap_or(now)
});

/// Whether the calling runtime has a timer. tokio panics if it has none, so the check runs once for each runtime.
fn has_timer() -> bool {
    static TIMERS: Lazy<Mutex<HashMap<runtime::Id, bool>>> = Lazy::new(Mutex::default);
    let Ok(runtime) = Handle::try_current() else {
        return false;
    };
    *lock(&TIMERS)
        .entry(runtime.id())
        .or_insert_with(|| catch_unwind(|| drop(time::sleep(Duration::ZERO))).is_ok())
}
