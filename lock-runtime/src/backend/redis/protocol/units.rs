//! Times in the format of the scripts.

use std::time::Duration;

use lock_core::lease::CLAIM;
use once_cell::sync::Lazy;

/// The slack that is added to the time limit of a request. A request that the server reads after the extended limit
/// changes nothing.
pub(crate) const LATE_SLACK: Duration = Duration::from_secs(1);

/// Returns the claim in ms, in the format of the scripts. A pushed grant lasts at most this long without a
/// confirmation.
pub(crate) fn claim_ms() -> &'static str {
    static CLAIM_MS: Lazy<String> = Lazy::new(|| millis(CLAIM));
    &CLAIM_MS
}

/// Formats a time in milliseconds. Rounds up, so that no lease or wait is shorter on the server than in this process.
pub(crate) fn millis(time: Duration) -> String {
    whole_millis(time).to_string()
}

/// Returns a time in milliseconds, rounded up.
pub(crate) fn whole_millis(time: Duration) -> u64 {
    let rest = time.subsec_nanos().div_ceil(1_000_000);
    let millis = time.as_secs().saturating_mul(1_000);
    millis.saturating_add(rest.into())
}
