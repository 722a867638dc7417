//! The arguments and answers of scripts, and times in their format. A request is built before it is known which connection will carry it.

use std::{borrow::Cow, time::Duration};

use lock_core::lease::{CLAIM, Moment};
use once_cell::sync::Lazy;
use redis::Value;

use crate::backend::redis::transport::connection::Connection;

/// The slack that is added to the time limit of a request. A request that the server reads after the extended limit
/// changes nothing.
pub(crate) const LATE_SLACK: Duration = Duration::from_secs(1);

/// An argument of a script.
pub(crate) enum Arg<'a> {
    Text(&'a str),
    /// The token floor of the connection that carries the command.
    Floor,
    /// A local moment, converted to the server's clock.
    At(Moment),
    /// The time left until a local moment, in ms.
    Until(Moment),
    /// Marks a command that restarts leases. If the command ran late, it would shorten leases that others have extended
    /// in the meantime. So the command carries a time limit, unless the connection ensures that no request arrives
    /// late.
    Restart,
}

impl Arg<'_> {
    /// Returns the text of the argument for a command that is sent over `connection` at `now`.
    pub(crate) fn over(&self, connection: &Connection, now: Moment) -> Cow<'_, str> {
        match self {
            Self::Text(text) => (*text).into(),
            Self::Floor => connection.floor.clone().into(),
            Self::At(moment) => connection.server_micros(*moment).to_string().into(),
            Self::Until(moment) => millis(moment.since(now)).into(),
            // The server permits this client to kill its connections, and the client kills a broken connection before
            // it uses the next one. So no request arrives late, and no time limit is needed.
            Self::Restart if connection.may_kill => "restart|".into(),
            Self::Restart => {
                let end = now + LATE_SLACK;
                format!("restart|{}", connection.server_micros(end)).into()
            }
        }
    }
}

/// The answer of a script.
pub(crate) struct Answered {
    pub(crate) value: Value,
    /// The moment at which the answered request was sent.
    pub(crate) sent: Moment,
    /// Whether the same request was sent before without an answer, so that it may have been carried out already.
    pub(crate) again: bool,
}

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
