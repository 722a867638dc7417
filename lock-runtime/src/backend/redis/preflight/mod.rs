//! Checks whether a server can be used for locks. Makes a connection that is used only for this check.

pub(crate) mod acl;
pub(crate) mod rights;

use std::{sync::Arc, time::Duration};

use futures_util::future;
use lock_core::backend::BackendError;
use redis::{ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use self::rights::{CHECK_CHANNEL, REDISSON_CHANNELS, advice, missing_rights};
use crate::{
    backend::redis::transport::{
        call_error::CallError,
        connection::{Connection, field},
        connector::{Connector, ServerCheck},
        credentials::NO_CREDENTIALS,
        refusal::with_missing_right,
        sentinel::{NO_PRIMARY, UNKNOWN_GROUP},
        shard_channels::Subscribed,
    },
    connect_error::ConnectError,
    limits,
};

/// A problem that the check of a server has found.
pub(crate) enum Failure {
    Unreachable(String),
    Authentication(String),
    NoCredentials(String),
    Permission(String),
    NotRedis(String),
    NoResp3(String),
    Tls(String),
    NoTls,
    Closed(String),
    Cluster,
    NoCluster,
    Sentinel,
    UnknownGroup,
    NoPrimary(String),
    Eviction(String),
    Refused(String),
}

impl Failure {
    pub(crate) fn of(error: &RedisError) -> Self {
        // A program other than Redis can answer at this address, so control characters in its text are replaced.
        let text = error.to_string().replace(char::is_control, " ");
        match error.kind() {
            _ if error.code() == Some(UNKNOWN_GROUP) => Self::UnknownGroup,
            _ if error.code() == Some(NO_PRIMARY) => {
                Self::NoPrimary(error.detail().unwrap_or_default().to_owned())
            }
            _ if error.code() == Some(NO_CREDENTIALS) => {
                Self::NoCredentials(error.detail().unwrap_or_default().to_owned())
            }
            _ if is_of_tls(error) => Self::Tls(text),
            ErrorKind::AuthenticationFailed => Self::Authentication(text),
            ErrorKind::Server(ServerErrorKind::NoPerm) => {
                Self::Permission(with_missing_right(text))
            }
            ErrorKind::Server(ServerErrorKind::ResponseError)
                if text.contains("unknown command") && text.contains("HELLO") =>
            {
                Self::NoResp3(text)
            }
            ErrorKind::Server(ServerErrorKind::ResponseError)
                if text.contains("unknown command") || text.contains("subcommand") =>
            {
                Self::NotRedis(text)
            }
            ErrorKind::Extension if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
                Self::Authentication(text)
            }
            ErrorKind::RESP3NotSupported => Self::NoResp3(text),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::NotRedis(text),
            ErrorKind::Extension | ErrorKind::Server(_) => Self::Refused(text),
            _ if error.is_connection_dropped() && !error.is_connection_refusal() => {
                Self::Closed(text)
            }
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

    /// Replaces `<user>` in the text about a missing permission with the name of the Redis user.
    pub(crate) fn of_user(self, connector: &Connector) -> Self {
        match self {
            Self::Permission(detail) => {
                Self::Permission(detail.replace("<user>", &connector.user()))
            }
            failure => failure,
        }
    }

    pub(crate) fn at(self, server: String, waited: Duration) -> ConnectError {
        match self {
            Self::Unreachable(detail) => ConnectError::Unreachable {
                server,
                waited,
                detail,
            },
            Self::Authentication(detail) => ConnectError::Authentication { server, detail },
            Self::Permission(detail) => ConnectError::Permission { server, detail },
            Self::NoCredentials(detail) => ConnectError::NoCredentials { server, detail },
            Self::Tls(detail) => ConnectError::Tls { server, detail },
            Self::NoTls => ConnectError::NoTls { server },
            Self::Closed(detail) => ConnectError::Closed { server, detail },
            Self::Cluster => ConnectError::Cluster { server },
            Self::NoCluster => ConnectError::NoCluster { server },
            Self::Sentinel => ConnectError::Sentinel { server },
            Self::UnknownGroup => ConnectError::UnknownGroup { server },
            Self::NoPrimary(detail) => ConnectError::NoPrimary { server, detail },
            Self::NotRedis(detail) => ConnectError::NotRedis { server, detail },
            Self::NoResp3(detail) => ConnectError::NoResp3 { server, detail },
            Self::Eviction(policy) => ConnectError::Eviction { server, policy },
            Self::Refused(detail) => ConnectError::Refused { server, detail },
        }
    }
}

/// Returns whether a TLS handshake has failed because one side does not accept the other side's certificate or
/// protocol.
fn is_of_tls(error: &RedisError) -> bool {
    #[cfg(feature = "__tls")]
    {
        use std::{error::Error, io};
        // The `redis` crate wraps the error that caused its own error in an `Arc`.
        type Shared = Arc<dyn Error + Send + Sync>;
        let inner = error.source().and_then(<dyn Error>::downcast_ref::<Shared>);
        let inner = inner.map(|inner| &**inner);
        let of_io = inner
            .and_then(<dyn Error + Send + Sync>::downcast_ref::<io::Error>)
            .and_then(io::Error::get_ref);
        of_io
            .or(inner)
            .is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
    }
    #[cfg(not(feature = "__tls"))]
    {
        let _ = error;
        false
    }
}

/// Checks the server before a session connects, if such a check is pending.
pub(crate) async fn check_first(
    connector: &Connector,
    patience: Duration,
) -> Result<(), ConnectError> {
    let Some(required) = connector.pending_check() else {
        return Ok(());
    };
    let started = connector.context.now();
    match check(connector, required, patience).await {
        Ok(()) => {
            connector.note_checked();
            Ok(())
        }
        Err(failure) => {
            let waited = connector.context.now().since(started);
            Err(failure.at(connector.address().to_owned(), waited))
        }
    }
}

/// Makes a connection, and checks whether the server can be used for locks.
pub(crate) async fn check(
    connector: &Connector,
    required: ServerCheck,
    patience: Duration,
) -> Result<(), Failure> {
    // A server without TLS does not answer a TLS handshake, because the server reads the handshake as an unfinished
    // line. Part of the time limit is therefore reserved for a request without TLS.
    let asks = asks_for_tls(connector);
    let patience = if asks {
        patience.saturating_sub(limits::TLS_PATIENCE)
    } else {
        patience
    };
    let until = connector.context.now() + patience;
    let checking = check_server(connector, required, patience);
    let checked = connector.context.timeout_at(until, checking).await;
    match checked.unwrap_or_else(|| Err(Failure::Unreachable("no answer".into()))) {
        Err(failure @ Failure::Permission(_)) => Err(failure.of_user(connector)),
        Err(Failure::Unreachable(_) | Failure::Closed(_))
            if asks && speaks_plainly(connector).await =>
        {
            Err(Failure::NoTls)
        }
        checked => checked,
    }
}

async fn check_server(
    connector: &Connector,
    ServerCheck {
        allow_eviction,
        probe_channel,
    }: ServerCheck,
    patience: Duration,
) -> Result<(), Failure> {
    let opened = Connection::open(
        connector,
        CHECK_CHANNEL,
        None,
        Arc::default(),
        patience,
        |_| {},
    )
    .await;
    let connection = match opened {
        Ok(connection) => connection,
        Err(error) => {
            let failure = Failure::of(&error);
            // A Sentinel does not know some commands of the handshake, so its error looks like the error of a program
            // that is not Redis.
            let is_other = matches!(failure, Failure::NotRedis(_));
            return Err(if is_other && is_sentinel(connector).await {
                Failure::Sentinel
            } else {
                failure
            });
        }
    };
    let (info, missing) = future::join(
        connection.server_info(allow_eviction),
        missing_rights(&connection, &connector.needs, connector.outdated.is_some()),
    )
    .await;
    if !missing.is_empty() {
        return Err(Failure::Permission(advice(&missing, &connector.user())));
    }
    let info = info.map_err(Failure::of_call)?;
    if info.mode.as_deref() == Some("cluster") && connector.outdated.is_none() {
        return Err(Failure::Cluster);
    }
    if let Some(channel) = probe_channel {
        // Without this check, the client would notice a missing permission for the channel only when a caller has to
        // wait.
        let checked = check_channel(connector, &connection, channel).await;
        checked.map_err(|error| match Failure::of_call(error) {
            Failure::Permission(detail) if detail.contains("channel") => {
                let pattern = REDISSON_CHANNELS.to_owned();
                Failure::Permission(advice(&[pattern], &connector.user()))
            }
            failure => failure,
        })?;
    }
    match info.eviction {
        Some(policy) if policy != "noeviction" && !allow_eviction => Err(Failure::Eviction(policy)),
        _ => Ok(()),
    }
}

/// Subscribes to a channel, unsubscribes, and publishes a message on it. In a Redis Cluster with shard channels, the
/// channel is a shard channel.
async fn check_channel(
    connector: &Connector,
    connection: &Connection,
    channel: &str,
) -> Result<(), CallError> {
    if connector.outdated.is_some() {
        let channels = &connection.shard_channels;
        let subscribing = channels.subscribe(connector, &connection.address, channel, |_| {});
        if subscribing.await? != Subscribed::Unsupported {
            channels.unsubscribe(&connector.context, channel).await;
            // A server checks the rights of the user before it redirects a command to another server. A redirection
            // therefore shows that the user has the right.
            return match connection.say(channel, "0", true).await {
                Err(CallError::Moved(_) | CallError::Ask(_)) => Ok(()),
                told => told,
            };
        }
    }
    for listening in [true, false] {
        connection.listen(channel, listening).await?;
    }
    connection.say(channel, "0", false).await
}

async fn is_sentinel(connector: &Connector) -> bool {
    let asking = async {
        let (mut wire, _) = connector.connect().await.ok()?;
        let mut info = redis::cmd("INFO");
        info.arg("server");
        info.query_async::<String>(&mut wire).await.ok()
    };
    let answer = connector
        .context
        .timeout_at(connector.context.now() + limits::OPEN_PATIENCE, asking)
        .await;
    let mode = answer
        .flatten()
        .and_then(|info| Some(field(&info, "redis_mode")?.to_owned()));
    mode.as_deref() == Some("sentinel")
}

fn asks_for_tls(connector: &Connector) -> bool {
    matches!(
        connector.fixed_address(),
        Some(ConnectionAddr::TcpTls { .. })
    )
}

/// Returns whether the URL asks for TLS, and the server answers a command that is sent without TLS.
async fn speaks_plainly(connector: &Connector) -> bool {
    let Some(ConnectionAddr::TcpTls { host, port, .. }) = connector.fixed_address() else {
        return false;
    };
    let asking = async {
        let mut socket = TcpStream::connect((host.as_str(), *port)).await.ok()?;
        socket.write_all(b"PING\r\n").await.ok()?;
        let mut answer = [0; 5];
        socket.read_exact(&mut answer).await.ok()?;
        Some(answer)
    };
    let answer = connector
        .context
        .timeout_at(connector.context.now() + limits::TLS_PATIENCE, asking)
        .await;
    // Some servers with TLS answer a command without TLS with an error in plain text. The server is therefore treated
    // as a server without TLS only if its answer begins like a reply of Redis to `PING`.
    let answer = answer.flatten();
    answer.is_some_and(|answer| [b"+PONG", b"-NOAU", b"-DENI"].contains(&&answer))
}
