//! The two local clocks: one for servers that others share, one for the in-process backend.

use std::{
    collections::HashMap,
    future::Future,
    panic::catch_unwind,
    sync::Mutex,
    time::{Duration, Instant},
};

use lock_core::{backend::BoxFuture, lease::Moment};
use once_cell::sync::Lazy;
use tokio::{
    runtime::{self as tokio_runtime, Handle},
    time,
};

use crate::background::{self, sync::lock};

/// A clock that runs while the machine is suspended: a lease on a server runs on, too.
pub(crate) mod boot {
    use super::{BoxFuture, Duration, Future, Moment, background, time};

    pub(crate) fn now() -> Moment {
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

    /// Timed by the engine's thread, so that no user runtime has to have a timer, or a moment for it.
    pub(crate) fn sleep_until(deadline: Moment) -> BoxFuture<'static, ()> {
        let _engine = background::handle().enter();
        // A timer may wake early by this clock, after a suspension late: the callers look at the clock again.
        Box::pin(time::sleep(deadline.since(now())))
    }

    /// Bounds `future`; `None` if `deadline` came first.
    pub(crate) async fn timeout_at<F: Future>(deadline: Moment, future: F) -> Option<F::Output> {
        let timer = sleep_until(deadline);
        tokio::select! {
            biased;
            output = future => Some(output),
            () = timer => None,
        }
    }
}

/// tokio's clock, which users' tests may pause and advance.
pub(crate) mod runtime {
    use super::{
        BoxFuture, Duration, Handle, HashMap, Instant, Lazy, Moment, Mutex, background,
        catch_unwind, lock, time, tokio_runtime,
    };

    // An hour before the first look, because a paused clock starts at its runtime's birth.
    static ORIGIN: Lazy<Instant> = Lazy::new(|| {
        let now = Instant::now();
        now.checked_sub(Duration::from_secs(3600)).unwrap_or(now)
    });

    /// Whether the runtimes that have slept here have a timer.
    static TIMERS: Lazy<Mutex<HashMap<tokio_runtime::Id, bool>>> = Lazy::new(Mutex::default);

    pub(crate) fn now() -> Moment {
        Moment::new(
            time::Instant::now()
                .into_std()
                .saturating_duration_since(*ORIGIN),
        )
    }

    /// Timed by the runtime that calls, whose clock may be paused; by the engine's thread where that has no timer.
    pub(crate) fn sleep_until(deadline: Moment) -> BoxFuture<'static, ()> {
        let _engine = (!has_timer()).then(|| background::handle().enter());
        match ORIGIN.checked_add(deadline.since_origin()) {
            Some(instant) => Box::pin(time::sleep_until(instant.into())),
            None => Box::pin(std::future::pending()),
        }
    }

    /// Whether the runtime that calls has a timer. tokio answers by a panic, so each runtime is asked once.
    fn has_timer() -> bool {
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        *lock(&TIMERS)
            .entry(runtime.id())
            .or_insert_with(|| catch_unwind(|| drop(time::sleep(Duration::ZERO))).is_ok())
    }
}
