//! The arguments and answers of scripts that any connection may carry.

use std::borrow::Cow;

use lock_core::lease::Moment;
use redis::Value;

use crate::backend::redis::{
    protocol::units::{LATE_SLACK, millis},
    transport::connection::Connection,
};

/// An argument of a script.
pub(crate) enum Arg<'a> {
    Text(&'a str),
    /// The token floor of the connection that carries the command.
    Floor,
    /// A local moment, converted to the server's clock.
    At(Moment),
    /// The time left until a local moment, in ms.
    Until(Moment),
    /// Marks a command that restarts leases. If run late, it would shorten the leases of others.
    Restart,
}

impl Arg<'_> {
    /// Returns the argument in the form that `connection` sends at `now`.
    pub(crate) fn over(&self, connection: &Connection, now: Moment) -> Cow<'_, str> {
        match self {
            Self::Text(text) => (*text).into(),
            Self::Floor => connection.floor.clone().into(),
            Self::At(moment) => connection.server_micros(*moment).to_string().into(),
            Self::Until(moment) => millis(moment.since(now)).into(),
            // A broken connection is closed on the server before its successor is used, where the server permits it.
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
    /// Whether an earlier request was not answered, and may have been carried out.
    pub(crate) again: bool,
}
