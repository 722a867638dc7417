//! The clock that all processes of a run share.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the current time, in ns since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    nanos(since)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until a moment, in ns since 1970.
pub(crate) async fn sleep_until(moment: u64) {
    tokio::time::sleep(Duration::from_nanos(moment.saturating_sub(now()))).await;
}
