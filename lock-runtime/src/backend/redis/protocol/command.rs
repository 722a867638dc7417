//! The arguments and answers of scripts, and times in the format that scripts use. Some arguments depend on the
//! connection, so an [`Arg`] is converted to text after the engine has chosen the connection for the command.

use std::{borrow::Cow, time::Duration};

use lock_core::lease::{CLAIM, Moment};
use once_cell::sync::Lazy;
use redis::Value;

use crate::backend::redis::transport::connection::Connection;
use crate::limits;

/// An argument of a script.
pub(crate) enum Arg<'a> {
    Text(&'a str),
    /// The token floor (see `native/next_token.lua`): the server's time at which the connection that carries the
    /// command was made.
    Floor,
    /// A local moment. The script gets this moment as a time of the server's clock.
    At(Moment),
    /// The time left until a local moment, in ms.
    Until(Moment),
    /// Marks a command that restarts leases: each lease then ends after the requested time, even if that shortens it.
    /// If such a command reached the server late, it would shorten a lease that a newer command has extended. On a
    /// connection over which requests can arrive late, the command therefore has a time limit.
    Restart,
}

impl Arg<'_> {
    /// Returns the text of the argument for a command that is sent over `connection` at `now`.
    pub(crate) fn over<'a>(&'a self, connection: &'a Connection, now: Moment) -> Cow<'a, str> {
        match self {
            Self::Text(text) => (*text).into(),
            Self::Floor => (&*connection.floor).into(),
            Self::At(moment) => connection.server_micros(*moment).to_string().into(),
            Self::Until(moment) => millis(moment.since(now)).into(),
            // This client is allowed to close its connections on the server. It closes a broken connection there before
            // it uses the next connection. A request over the broken connection then cannot arrive late, so the restart
            // of a lease needs no time limit.
            Self::Restart if connection.may_kill => "restart|".into(),
            Self::Restart => {
                let end = now + limits::LATE_SLACK;
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
    /// Whether the same request was sent before and got no answer. The server may have carried out that earlier
    /// request.
    pub(crate) again: bool,
}

/// Returns [`CLAIM`] in ms, as an argument for scripts. If the server announces a grant in a message, and the session
/// does not confirm the grant, the grant ends after a claim at the latest.
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
