//! Times in the format of the scripts.

use std::time::Duration;

use lock_core::lease::CLAIM;
use once_cell::sync::Lazy;

/// The slack that is added to a request's own time limit. The server refuses a request that it reads later.
pub(crate) const LATE_SLACK: Duration = Duration::from_secs(1);

/// Returns the time for which a pushed grant stands unconfirmed, in the format of the scripts.
pub(crate) fn claim_ms() -> &'static str {
    static CLAIM_MS: Lazy<String> = Lazy::new(|| millis(CLAIM));
    &CLAIM_MS
}

/// Formats milliseconds, rounded up: no lease and no wait is shorter on the server than it is here.
pub(crate) fn millis(time: Duration) -> String {
    whole_millis(time).to_string()
}

/// Returns milliseconds as a number, rounded up.
pub(crate) fn whole_millis(time: Duration) -> u64 {
    let rest = time.subsec_nanos().div_ceil(1_000_000);
    let millis = time.as_secs().saturating_mul(1_000);
    millis.saturating_add(rest.into())
}
