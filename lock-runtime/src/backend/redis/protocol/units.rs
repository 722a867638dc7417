//! Times as the scripts take them.

use std::time::Duration;

use lock_core::lease::CLAIM;
use once_cell::sync::Lazy;

/// How long after a request's own end the server's clock may lag before the request counts as refused.
pub(crate) const LATE_SLACK: Duration = Duration::from_secs(1);

/// The time a pushed grant stands unconfirmed, as the scripts take it.
pub(crate) fn claim_ms() -> &'static str {
    static CLAIM_MS: Lazy<String> = Lazy::new(|| millis(CLAIM));
    &CLAIM_MS
}

/// Milliseconds, rounded up: no lease is shorter on the server than it is here, and no wait.
pub(crate) fn millis(time: Duration) -> String {
    whole_millis(time).to_string()
}

/// The same as a number.
pub(crate) fn whole_millis(time: Duration) -> u64 {
    let rest = time.subsec_nanos().div_ceil(1_000_000);
    let millis = time.as_secs().saturating_mul(1_000);
    millis.saturating_add(rest.into())
}
