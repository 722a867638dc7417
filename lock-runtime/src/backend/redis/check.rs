//! What can be wrong with a server, found by a first connection.

use std::{sync::Arc, time::Duration};

use lock_core::{backend::BackendError, layout::Layout};
use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::{
    Server,
    connection::{CallError, Connection},
    layout::REDISSON_PROBE,
};
use crate::connect::ConnectError;

/// What a first connection may find.
pub(super) enum Failure {
    Unreachable(String),
    Authentication(String),
    Permission(String),
    NotRedis(String),
    Eviction(String),
    Refused(String),
}

impl Failure {
    fn of(error: &RedisError) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Authentication(text),
            ErrorKind::Server(ServerErrorKind::NoPerm) => Self::Permission(text),
            ErrorKind::Server(ServerErrorKind::ResponseError)
                if text.contains("unknown command") || text.contains("subcommand") =>
            {
                Self::NotRedis(text)
            }
            ErrorKind::Extension if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
                Self::Authentication(text)
            }
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::RESP3NotSupported => {
                Self::NotRedis(text)
            }
            ErrorKind::Extension | ErrorKind::Server(_) => Self::Refused(text),
            _ => Self::Unreachable(text),
        }
    }

    fn of_call(error: CallError) -> Self {
        match error {
            CallError::Refused(BackendError::Refused(text)) if text.contains("NoPerm") => {
                Self::Permission(text)
            }
            CallError::Refused(error) => Self::Refused(error.to_string()),
            error => Self::Unreachable(error.to_string()),
        }
    }

    pub(super) fn at(self, server: String, waited: Duration) -> ConnectError {
        match self {
            Self::Unreachable(detail) => ConnectError::Unreachable {
                server,
                waited,
                detail,
            },
            Self::Authentication(detail) => ConnectError::Authentication { server, detail },
            Self::Permission(detail) => ConnectError::Permission { server, detail },
            Self::NotRedis(detail) => ConnectError::NotRedis { server, detail },
            Self::Eviction(policy) => ConnectError::Eviction { server, policy },
            Self::Refused(detail) => ConnectError::Refused { server, detail },
        }
    }
}

/// Makes a first connection, and asks whether the server may drop keys.
pub(super) async fn check(
    server: Arc<Server>,
    allow_eviction: bool,
    patience: Duration,
) -> Result<(), Failure> {
    let connection = Connection::open(
        &server,
        "lock:inbox:check",
        None,
        Arc::default(),
        patience,
        |_| {},
    )
    .await
    .map_err(|error| Failure::of(&error))?;
    if server.layout == Layout::Redisson {
        // A right that is missing would show only when somebody waits.
        for listening in [true, false] {
            let listened = connection.listen(REDISSON_PROBE, listening).await;
            listened.map_err(Failure::of_call)?;
        }
        let told = connection.say(REDISSON_PROBE, "0").await;
        told.map_err(Failure::of_call)?;
    }
    match connection.eviction_policy().await {
        Some(policy) if policy != "noeviction" && !allow_eviction => Err(Failure::Eviction(policy)),
        _ => Ok(()),
    }
}
