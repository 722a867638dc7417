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
    /// The floor of the connection that carries the command.
    Floor,
    /// A local moment, by the server's clock.
    At(Moment),
    /// The time until a local moment, in ms.
    Until(Moment),
    /// Leases begin again with this command, which may not come late: it would shorten those of others.
    Restart,
}

impl Arg<'_> {
    /// The argument as `connection` carries it at `now`.
    pub(crate) fn over(&self, connection: &Connection, now: Moment) -> Cow<'_, str> {
        match self {
            Self::Text(text) => (*text).into(),
            Self::Floor => connection.floor.clone().into(),
            Self::At(moment) => connection.server_micros(*moment).to_string().into(),
            Self::Until(moment) => millis(moment.since(now)).into(),
            // A connection that is broken is closed on the server before the next one is used, where that is permitted.
            Self::Restart if connection.may_kill => "restart|".into(),
            Self::Restart => {
                let end = now + LATE_SLACK;
                format!("restart|{}", connection.server_micros(end)).into()
            }
        }
    }
}

/// A script's answer.
pub(crate) struct Answered {
    pub(crate) value: Value,
    /// When the request that it answers was sent.
    pub(crate) sent: Moment,
    /// Whether an earlier request got no answer, and may have been carried out.
    pub(crate) again: bool,
}
