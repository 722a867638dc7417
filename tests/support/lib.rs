//! The test support: real servers, real processes, a fault proxy and a checker of histories. The tests, tools, examples
//! and benchmarks of this workspace share it.

use std::{
    future::Future,
    io::{self, Write as _},
    panic::Location,
    path::Path,
    sync::OnceLock,
    time::Duration,
};

mod backstage;
pub mod clock;
pub mod cluster;
pub mod guarded;
pub mod history;
pub mod jvm;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod links;
pub mod log;
pub mod matrix;
pub mod option_guide;
mod outcome;
#[cfg(test)]
mod packages;
pub mod page;
pub mod process;
pub mod proxy;
pub mod quorum;
pub mod rights;
pub mod sent;
pub mod sentinels;
pub mod server;
pub mod silent;
pub mod stores;
mod unread;

pub use outcome::{Room, assert_busy, assert_lost};
pub use unread::poll_unread;

/// How long a test waits for a connection or a free lock. An idle machine never needs this time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The environment variable that makes [`epsilon`] strict. The commands `faults` and `mutants` set it, and need an idle
/// machine.
pub const STRICT_VARIABLE: &str = "TIMES_ARE_STRICT";

fn is_strict() -> bool {
    std::env::var_os(STRICT_VARIABLE).is_some()
}

/// Returns the tolerance that a test adds to a promised time: two seconds, multiplied by [`slowness`]. The simulation
/// checks the promised times without a tolerance. If [`STRICT_VARIABLE`] is set, the tolerance is 250 ms.
#[must_use]
pub fn epsilon() -> Duration {
    if is_strict() {
        return Duration::from_millis(250);
    }
    Duration::from_secs(2).mul_f64(slowness())
}

/// Returns how many times slower this process runs than on an idle machine, as measured once at the first call. The
/// result is between 1 and 10, and 1 if [`STRICT_VARIABLE`] is set.
///
/// A thread that shares a core with busy processes runs for only a part of the time. The measurement therefore compares
/// the time that passes during a computation with the processor time of the computation.
#[must_use]
pub fn slowness() -> f64 {
    static SLOWNESS: OnceLock<f64> = OnceLock::new();
    *SLOWNESS.get_or_init(|| {
        if is_strict() {
            return 1.0;
        }
        let slowness = clock::slowdown(Duration::from_millis(50)).clamp(1.0, 10.0);
        if slowness > 1.5 {
            // The test harness captures what `eprintln!` prints, but not this line.
            let _ = writeln!(
                io::stderr(),
                "this machine is busy: the tests allow {slowness:.1} times as much time"
            );
        }
        slowness
    })
}

/// Returns the root of this checkout.
///
/// # Panics
/// This function never panics, because this package is in a folder of the checkout.
#[must_use]
pub fn root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("this package is in a folder of the root")
}

/// Calls `question` repeatedly until it returns true.
///
/// # Panics
/// If `question` does not return true within 120 s. A Sentinel whose process was not scheduled for two seconds does nothing for
/// half a minute.
#[track_caller]
pub fn until(mut question: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let asking = async {
            while !question().await {
                tokio::task::yield_now().await;
            }
        };
        let held = backstage::within(Duration::from_secs(120), asking).await;
        assert!(
            held.is_some(),
            "the condition at {caller} does not hold within 120 s"
        );
    }
}

/// The code of the README and of the guides, which is compiled and run with the documentation tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    struct Readme;

    #[doc = include_str!("../../docs/guides/options.md")]
    struct Options;

    #[doc = include_str!("../../docs/guides/several-keys.md")]
    struct SeveralKeys;

    #[doc = include_str!("../../docs/guides/tests.md")]
    struct Tests;

    #[doc = include_str!("../../docs/guides/errors-and-logs.md")]
    struct ErrorsAndLogs;

    #[doc = include_str!("../../docs/guides/spans-and-metrics.md")]
    struct SpansAndMetrics;

    #[doc = include_str!("../../docs/guides/replicas.md")]
    struct Replicas;

    #[doc = include_str!("../../docs/guides/readers.md")]
    struct Readers;

    #[doc = include_str!("../../docs/guides/latches.md")]
    struct Latches;

    #[doc = include_str!("../../docs/guides/semaphores.md")]
    struct Semaphores;

    #[doc = include_str!("../../docs/guides/leader.md")]
    struct Leader;

    #[doc = include_str!("../../docs/guides/sentinel.md")]
    struct Sentinel;

    #[doc = include_str!("../../docs/guides/cluster.md")]
    struct Cluster;

    #[doc = include_str!("../../docs/guides/redlock.md")]
    struct Redlock;

    #[doc = include_str!("../../docs/guides/redisson.md")]
    struct Redisson;

    #[doc = include_str!("../../docs/guides/tls.md")]
    struct Tls;

    #[doc = include_str!("../../docs/guides/fencing.md")]
    struct Fencing;

    #[doc = include_str!("../../docs/moving/README.md")]
    struct Moving;

    #[doc = include_str!("../../docs/moving/redisson.md")]
    struct MovingFromRedisson;

    #[doc = include_str!("../../docs/moving/shedlock.md")]
    struct MovingFromShedLock;

    #[doc = include_str!("../../docs/moving/rust-crates.md")]
    struct MovingFromRustCrates;

    #[doc = include_str!("../../docs/moving/set-nx.md")]
    struct MovingFromSetNx;

    #[doc = include_str!("../../docs/moving/pg-advisory-lock.md")]
    struct MovingFromPgAdvisoryLock;

    #[doc = include_str!("../../docs/moving/is-a-lock-what-you-need.md")]
    struct IsALockWhatYouNeed;

    #[doc = include_str!("../../docs/guides/page.md")]
    struct Page;
}
