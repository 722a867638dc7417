//! The reasons why a command failed, and which other server of a cluster has to carry out the command.

use std::fmt;

use lock_core::backend::BackendError;
use redis::{ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};

use crate::backend::redis::transport::{credentials::NO_CREDENTIALS, refusal::with_missing_right};

/// The reason why a command was not answered, or not carried out.
#[derive(Debug, Clone)]
pub(crate) enum CallError {
    /// The connection is lost, or has to be closed. The server may have carried out the command.
    Broken(String),
    /// The server cannot carry out the command for the moment.
    NotReady(String),
    /// The server is no longer a master, or the request came too late. After a pause, the session makes a new
    /// connection, with a new token floor.
    Demoted(String),
    /// Another server of the cluster stores the lock. The server that returned this error has not carried out the
    /// command.
    Moved(Redirect),
    /// The lock is moving to another server of the cluster, which has to carry out this command. The server that
    /// returned this error has not carried out the command.
    Ask(Redirect),
    /// The server refuses the command.
    Refused(BackendError),
}

impl CallError {
    pub(crate) fn of(error: &RedisError) -> Self {
        let text = error.to_string();
        // Redis 6.2 wraps the error of a command inside a script in an error of the script, so only the text shows the
        // original code.
        if text.contains("WRONGTYPE") {
            return Self::Refused(BackendError::WrongLayout);
        }
        match error.kind() {
            ErrorKind::Server(kind) => match kind {
                ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown => Self::NotReady(text),
                ServerErrorKind::ReadOnly | ServerErrorKind::Moved | ServerErrorKind::Ask => {
                    Self::Demoted(text)
                }
                _ if text.contains("-READONLY") => Self::Demoted(text),
                // A server that became a replica after it had carried out the previous command.
                _ if text.contains("WAIT cannot be used with replica") => Self::Demoted(text),
                _ if ["-LOADING", "-MISCONF", "-NOREPLICAS", "-MASTERDOWN"]
                    .iter()
                    .any(|code| text.contains(code)) =>
                {
                    Self::NotReady(text)
                }
                _ => Self::Refused(BackendError::Refused(with_missing_right(text))),
            },
            // The provider of credentials can still return credentials later.
            ErrorKind::Extension if error.code() == Some(NO_CREDENTIALS) => Self::NotReady(text),
            // A server that becomes a replica ends a blocking command, such as `WAIT`, with this error.
            ErrorKind::Extension if error.code() == Some("UNBLOCKED") => Self::Demoted(text),
            ErrorKind::Extension
                if matches!(error.code(), Some("BUSY" | "MISCONF" | "NOREPLICAS")) =>
            {
                Self::NotReady(text)
            }
            ErrorKind::Extension => Self::Refused(BackendError::Refused(with_missing_right(text))),
            _ => Self::Broken(text),
        }
    }

    /// Returns whether the error is the server's answer that it does not carry out the command now.
    pub(crate) fn is_not_carried_out(&self) -> bool {
        matches!(self, Self::NotReady(_) | Self::Moved(_) | Self::Ask(_))
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(text) | Self::NotReady(text) | Self::Demoted(text) => f.write_str(text),
            Self::Moved(to) => write!(f, "the lock has moved to {}", to.address),
            Self::Ask(to) => write!(f, "the lock is moving to {}", to.address),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

/// A redirection: the server of a cluster that stores a slot, according to another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    pub(crate) address: ConnectionAddr,
}

impl Redirect {
    /// Reads `<slot> <host>:<port>` from an error that the server at `asked` has returned.
    pub(crate) fn of(error: &RedisError, asked: &ConnectionAddr) -> Option<Self> {
        let (address, slot) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let address = Self::address(host, port.parse().ok()?, asked);
        Some(Self { slot, address })
    }

    /// Returns the address of a server that the server at `asked` has named. If the answer names no host (`named` is
    /// empty or `?`), the result has the host of `asked`.
    pub(crate) fn address(named: &str, port: u16, asked: &ConnectionAddr) -> ConnectionAddr {
        let host = |asked: &str| match named {
            "" | "?" => asked.to_owned(),
            named => named.to_owned(),
        };
        match asked {
            ConnectionAddr::TcpTls {
                host: asked,
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host: host(asked),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            ConnectionAddr::Tcp(asked, _) => ConnectionAddr::Tcp(host(asked), port),
            _ => ConnectionAddr::Tcp(host("localhost"), port),
        }
    }
}
