//! The arguments and answers of scripts. A request is built before it is known which connection will carry it.

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
