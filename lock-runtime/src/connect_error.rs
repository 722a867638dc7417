//! The errors of connecting a client, most of them with advice on what to do.

use std::{fmt, time::Duration};

use lock_core::{
    advice::{Advice, advised},
    options::OptionsError,
};
/// The environment variable that [`LockClient::from_env`](crate::LockClient::from_env) reads.
pub const URL_VARIABLE: &str = "LOCK_URL";

/// The reason why a client could not connect. The error names the server by its address, and never contains a password.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The builder was given no URL and no address of a server.
    MissingUrl,
    /// The environment variable `LOCK_URL` is unset or empty.
    MissingVariable,
    /// The URL is malformed.
    InvalidUrl {
        /// What is wrong with the URL.
        detail: String,
    },
    /// The URL or a setting of the builder needs a feature of the crate `lock-runtime` that is off.
    MissingFeature {
        /// The scheme or the setting that needs the feature, for instance `redis+cluster://`.
        needed_by: String,
        /// The name of the feature. For `tls-ring`, the feature `tls-aws-lc` serves as well.
        feature: &'static str,
    },
    /// The TLS settings of the builder cannot be used.
    InvalidTls {
        /// The setting that is wrong, the name of its file, and the reason.
        detail: String,
    },
    /// A Redlock URL names fewer than three servers. With two servers, the loss of one server would stop all locking.
    TooFewServers {
        /// The number of servers that the URL names.
        servers: usize,
    },
    /// A Redlock URL names a server twice, which would give that server two votes.
    SameServerTwice {
        /// The address of the server.
        server: String,
    },
    /// A node of a Redlock is a Redis Cluster. A node is one server.
    ClusterNode,
    /// A node of a Redlock is a group that Sentinels watch. A node is one server.
    SentinelNode,
    /// Too few servers of a Redlock URL are usable.
    NoQuorum {
        /// The number of usable servers.
        reached: usize,
        /// The number of usable servers that the client needs: a majority of the servers in the URL.
        needed: usize,
        /// The errors of the remaining servers, which are unusable.
        failures: Vec<ConnectError>,
    },
    /// The client's default options are out of range or contradict each other.
    InvalidDefaults(OptionsError),
    /// The client has Redisson's layout, which supports neither a Redlock nor the in-process backend.
    UnsupportedLayout,
    /// The namespace is empty.
    EmptyNamespace,
    /// No server answers at the address.
    Unreachable {
        /// The address of the server.
        server: String,
        /// How long the client tried to connect.
        waited: Duration,
        /// The error of the last attempt.
        detail: String,
    },
    /// The server refuses the user or the password.
    Authentication {
        /// The address of the server.
        server: String,
        /// The server's message.
        detail: String,
    },
    /// The [provider of credentials](crate::LockClientBuilder::credentials_provider) has returned an error, or has not
    /// answered in time.
    NoCredentials {
        /// The address of the server.
        server: String,
        /// The error that the provider returned, or the reason why it gave no answer.
        detail: String,
    },
    /// The server's ACL denies this user a command, a key or a channel that locks need.
    Permission {
        /// The address of the server.
        server: String,
        /// The command that grants the missing rights, such as `ACL SETUSER locks +zpopmin`, and the reason.
        detail: String,
    },
    /// The TLS handshake fails. Either the client does not trust the server's certificate, or the server does not
    /// accept the client's certificate, or the server requires a client certificate and the client has none.
    Tls {
        /// The address of the server.
        server: String,
        /// What is wrong, according to the client or to the server.
        detail: String,
    },
    /// The URL asks for TLS, but the Redis server answers without TLS.
    NoTls {
        /// The address of the server.
        server: String,
    },
    /// The server closes connections before it answers, as a server that expects TLS does.
    Closed {
        /// The address of the server.
        server: String,
        /// The error of the last attempt.
        detail: String,
    },
    /// The server is a node of a Redis Cluster, but the URL does not name a cluster. The URL of a cluster begins with
    /// `redis+cluster://`.
    Cluster {
        /// The address of the server.
        server: String,
    },
    /// The URL names a Redis Cluster, but the server is not a node of a cluster.
    NoCluster {
        /// The URL of the servers, without credentials.
        server: String,
    },
    /// The server is a Redis Sentinel, which stores no locks. The URL of a group that Sentinels watch begins with
    /// `redis+sentinel://`.
    Sentinel {
        /// The address of the server.
        server: String,
    },
    /// The Sentinels do not watch a group with the name that the URL contains.
    UnknownGroup {
        /// The URL of the Sentinels, without credentials.
        server: String,
    },
    /// The Sentinels name a server that is not a primary, because a failover is under way.
    NoPrimary {
        /// The URL of the Sentinels, without credentials.
        server: String,
        /// The server that the Sentinels name, and its role.
        detail: String,
    },
    /// The server does not speak Redis's protocol, or is older than Redis 6.2.
    NotRedis {
        /// The address of the server.
        server: String,
        /// The unexpected answer of the server.
        detail: String,
    },
    /// The server or a proxy in front of it does not speak RESP3. The engine needs this version of the protocol to
    /// receive notifications.
    NoResp3 {
        /// The address of the server.
        server: String,
        /// The server's answer.
        detail: String,
    },
    /// The server evicts keys when its memory is full, so the server could delete held locks.
    Eviction {
        /// The address of the server.
        server: String,
        /// The server's `maxmemory-policy`.
        policy: String,
    },
    /// The server answered with a refusal that no other variant describes.
    Refused {
        /// The address of the server.
        server: String,
        /// The server's message.
        detail: String,
    },
}

impl ConnectError {
    /// Returns whether the server refuses this client until an administrator changes its settings.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Authentication { .. } | Self::Permission { .. } | Self::Eviction { .. }
        )
    }

    /// Returns whether another try can succeed later, because a server is starting, a failover is under
    /// way, or the provider of credentials may answer.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NoCredentials { .. }
            | Self::Closed { .. }
            | Self::NoPrimary { .. } => true,
            Self::NoQuorum { failures, .. } => failures.iter().all(Self::may_pass),
            _ => false,
        }
    }
}

/// The text of the error says in one sentence what is wrong. The error's [`source`](std::error::Error::source) says
/// what to do.
impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingUrl => f.write_str("no lock server is named"),
            Self::MissingVariable => {
                write!(
                    f,
                    "the environment variable {URL_VARIABLE} is not set or is empty"
                )
            }
            Self::InvalidUrl { detail } => {
                write!(f, "the lock server's URL is not valid ({detail})")
            }
            Self::MissingFeature { needed_by, feature } => {
                write!(
                    f,
                    "{needed_by} needs the feature `{feature}` of lock-runtime"
                )
            }
            Self::InvalidTls { detail } => {
                write!(f, "the TLS settings are not valid ({detail})")
            }
            Self::TooFewServers { servers } => write!(
                f,
                "a Redlock needs at least three servers that are independent of each other, but the URL names {servers}"
            ),
            Self::SameServerTwice { server } => write!(
                f,
                "the Redlock URL names the server {server} twice, so that this server would have two votes"
            ),
            Self::ClusterNode => f.write_str("a Redis Cluster cannot be a node of a Redlock"),
            Self::SentinelNode => {
                f.write_str("a group that Sentinels watch cannot be a node of a Redlock")
            }
            Self::NoQuorum {
                reached,
                needed,
                failures,
            } => {
                write!(
                    f,
                    "{reached} servers of the Redlock can be used, and {needed} are needed"
                )?;
                failures
                    .iter()
                    .try_for_each(|failure| write!(f, "; {failure}"))
            }
            Self::InvalidDefaults(error) => {
                write!(f, "the client's defaults are not valid: {error}")
            }
            Self::UnsupportedLayout => f.write_str(
                "Redisson's layout is not available for a Redlock and for locks in process",
            ),
            Self::EmptyNamespace => f.write_str("the client's namespace is empty"),
            Self::Unreachable {
                server,
                waited,
                detail,
            } => write!(
                f,
                "no lock server answers at {server} ({detail}; tried for {waited:.0?})"
            ),
            Self::Authentication { server, detail } => write!(
                f,
                "the lock server at {server} refuses the user or the password ({detail})"
            ),
            Self::NoCredentials { server, detail } => write!(
                f,
                "the provider of credentials returned no credentials for the lock server at {server} ({detail})"
            ),
            Self::Permission { server, detail } => write!(
                f,
                "the lock server at {server} does not permit what locks need ({detail})"
            ),
            Self::Tls { server, detail } => {
                write!(
                    f,
                    "the TLS handshake with the lock server at {server} fails ({detail})"
                )
            }
            Self::NoTls { server } => {
                write!(f, "the lock server at {server} speaks no TLS on this port")
            }
            Self::Closed { server, detail } => write!(
                f,
                "the program that listens at {server} closes connections without an answer ({detail})"
            ),
            Self::Cluster { server } => write!(
                f,
                "the lock server at {server} is a node of a Redis Cluster"
            ),
            Self::NoCluster { server } => {
                write!(
                    f,
                    "a single server answers at {server}, not a Redis Cluster"
                )
            }
            Self::Sentinel { server } => write!(
                f,
                "the server at {server} is a Sentinel, which stores no locks"
            ),
            Self::UnknownGroup { server } => {
                write!(f, "the Sentinels watch no group with the name in {server}")
            }
            Self::NoPrimary { server, detail } => {
                write!(f, "the Sentinels of {server} name no primary ({detail})")
            }
            Self::NotRedis { server, detail } => {
                write!(
                    f,
                    "the server at {server} is not Redis 6.2 or later ({detail})"
                )
            }
            Self::NoResp3 { server, detail } => {
                write!(f, "the server at {server} does not speak RESP3 ({detail})")
            }
            Self::Eviction { server, policy } => write!(
                f,
                "the lock server at {server} evicts keys when its memory is full (maxmemory-policy {policy}), including locks that are held"
            ),
            Self::Refused { server, detail } => {
                write!(f, "the lock server at {server} refuses: {detail}")
            }
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let advice = match self {
            Self::MissingUrl => &Advice(
                "give the builder a `url`, for instance \"redis://127.0.0.1/\" or \"memory:\"",
            ),
            Self::MissingVariable => &Advice(
                "set the variable to the lock server's URL, for instance redis://127.0.0.1/ (for in-process locks, set it to memory:)",
            ),
            Self::InvalidUrl { .. } => &Advice(
                "write redis://[user:password@]host[:port][/db], rediss://.., unix:///path, redis+sentinel://host1,host2,host3/group, redis+cluster://host1,host2,host3, redlock://host1,host2,host3 or memory:",
            ),
            Self::MissingFeature { .. } => &Advice(
                "add the feature to those of lock-runtime in Cargo.toml; README.md lists all features, and for TLS, `tls-aws-lc` serves as well as `tls-ring`",
            ),
            Self::InvalidTls { .. } => &Advice(
                "check the builder's tls_root_certificates, tls_client_certificate and tls_server_name, see docs/guides/tls.md",
            ),
            Self::TooFewServers { .. } => &Advice(
                "write redlock://host1,host2,host3, or redis://host for locks on one server",
            ),
            Self::SameServerTwice { .. } => {
                &Advice("name each server once, as in redlock://host1,host2,host3")
            }
            Self::ClusterNode => &Advice(
                "name independent servers, redis://host; or use the Redis Cluster alone instead of a Redlock",
            ),
            Self::SentinelNode => &Advice(
                "name independent servers, redis://host; or keep the locks on one group, with the URL redis+sentinel://sentinel1,sentinel2,sentinel3/group",
            ),
            Self::NoQuorum { failures, .. } => return failures.first()?.source(),
            Self::InvalidDefaults(error) => return error.source(),
            Self::UnsupportedLayout => &Advice(
                "name the server with a redis://, redis+sentinel:// or redis+cluster:// URL, or leave `layout` out",
            ),
            Self::EmptyNamespace => &Advice("set the namespace to the application's name"),
            Self::Unreachable { .. } => &Advice("check the address, and that the server runs"),
            Self::Authentication { .. } => &Advice("check the credentials in the URL"),
            Self::NoCredentials { .. } => &Advice(
                "check the provider: `connect_within` waits until the provider returns credentials",
            ),
            Self::Permission { .. } => {
                &Advice("docs/guides/acl.md lists all rights that the user needs")
            }
            Self::Tls { .. } => &Advice(
                "check the builder's tls_root_certificates, tls_client_certificate and tls_server_name, see docs/guides/tls.md",
            ),
            Self::NoTls { .. } => &Advice(
                "write redis:// (redlock:// for several servers) instead of rediss://, or name the server's TLS port",
            ),
            Self::Closed { .. } => &Advice(
                "write rediss:// if the port expects TLS, otherwise check which program listens on the port",
            ),
            Self::Cluster { .. } => &Advice(
                "write redis+cluster://host1,host2,host3, with some of the cluster's servers",
            ),
            Self::NoCluster { .. } => &Advice("write redis://host for a single server"),
            Self::Sentinel { .. } => &Advice(
                "write redis+sentinel://sentinel1,sentinel2,sentinel3/group, with the name of the group that the Sentinels watch",
            ),
            Self::UnknownGroup { .. } => {
                &Advice("write the name after `sentinel monitor` in the Sentinels' settings")
            }
            Self::NoPrimary { .. } => &Advice(
                "a failover may be under way: `connect_within` waits until the failover has ended",
            ),
            Self::NotRedis { .. } => &Advice("check the address and the version of the server"),
            Self::NoResp3 { .. } => &Advice(
                "connect to Redis 6.2 or later without a proxy, or through a proxy that supports RESP3",
            ),
            Self::Eviction { .. } => &Advice(
                "set maxmemory-policy to noeviction, or call `allow_eviction(true)` on the builder",
            ),
            Self::Refused { .. } => return None,
        };
        Some(advice)
    }
}

impl fmt::Debug for ConnectError {
    // If `main` returns the error, Rust prints its `Debug` form, so this form includes the advice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&advised(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_is_wrong_and_debug_what_to_do() {
        let server = || "host:1".to_owned();
        for (error, advice) in [
            (ConnectError::MissingVariable, "memory:"),
            (
                ConnectError::NoTls { server: server() },
                "instead of rediss://",
            ),
            (
                ConnectError::Cluster { server: server() },
                "redis+cluster://",
            ),
            (
                ConnectError::Sentinel { server: server() },
                "redis+sentinel://",
            ),
            (ConnectError::ClusterNode, "independent servers"),
            (ConnectError::SentinelNode, "independent servers"),
            (ConnectError::SentinelNode, "redis+sentinel://"),
            (
                ConnectError::InvalidDefaults(OptionsError::WaitTooLong),
                "\"24h\" or less",
            ),
        ] {
            assert!(!error.to_string().contains(advice), "{error}");
            assert!(format!("{error:?}").contains(advice), "{error:?}");
        }
    }
}
