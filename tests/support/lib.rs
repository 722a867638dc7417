//! The test support: real servers, real processes, a fault proxy and a checker of histories. The tests, tools, examples
//! and benchmarks of this workspace share it.

use std::{path::Path, time::Duration};

mod backstage;
pub mod clock;
pub mod cluster;
pub mod guarded;
pub mod history;
pub mod jvm;
#[cfg(test)]
mod layers;
pub mod log;
pub mod matrix;
mod outcome;
pub mod page;
pub mod process;
pub mod proxy;
pub mod quorum;
pub mod rights;
pub mod sent;
pub mod sentinels;
pub mod server;
pub mod stores;

pub use outcome::{Room, assert_busy, assert_lost};

/// Returns the tolerance for a loaded machine: a measured time is allowed to exceed a promised time by 250 ms, or by 1
/// s if `CI` is set.
#[must_use]
pub fn epsilon() -> Duration {
    let ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    Duration::from_millis(if ci { 1000 } else { 250 })
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
pub async fn until(mut question: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !question().await {
            tokio::task::yield_now().await;
        }
    };
    backstage::within(Duration::from_secs(120), asking)
        .await
        .expect("the condition holds within 120 s");
}

/// The code of the README and of the guides, which is compiled and run with the documentation tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    struct Readme;

    #[doc = include_str!("../../docs/guides/several-keys.md")]
    struct SeveralKeys;

    #[doc = include_str!("../../docs/guides/tests.md")]
    struct Tests;

    #[doc = include_str!("../../docs/guides/spans-and-metrics.md")]
    struct SpansAndMetrics;

    #[doc = include_str!("../../docs/guides/replicas.md")]
    struct Replicas;

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
}
