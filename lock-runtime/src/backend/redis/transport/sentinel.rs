//! Finds the primary of a group of servers that Sentinels watch. The client asks the Sentinels before each connection.
//! It also listens to the Sentinels while it is connected, and leaves an old primary when a Sentinel announces a new
//! one.

use std::{
    fmt, io,
    sync::{Arc, Mutex, Weak},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use lock_core::{backend::BoxFuture, lease::Moment};
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, PushKind, RedisError, RedisResult,
};
use tokio::{sync::Notify, task::AbortHandle};

use crate::{
    backend::redis::transport::{access::Access, wire::Arrival},
    background::{Context, lock, watched::Watched},
    events::TARGET,
    limits,
};

/// The channel on which a Sentinel announces a new primary.
const SWITCHED: &str = "+switch-master";

/// The code of the error for a group that a Sentinel does not know.
pub(crate) const UNKNOWN_GROUP: &str = "UNKNOWNGROUP";
/// The code of the error for a server that the Sentinels name, but that is not a primary.
pub(crate) const NO_PRIMARY: &str = "NOPRIMARY";

/// A group of servers, and the settings for connections to these servers and to their Sentinels.
#[derive(Debug, Clone)]
pub(crate) struct SentinelConfig {
    /// The name under which the Sentinels know the group.
    pub(crate) group: String,
    pub(crate) sentinels: Vec<ConnectionInfo>,
    /// The settings for connections to the servers of the group, except the address, which the Sentinels name.
    pub(crate) server: ConnectionInfo,
}

/// The Sentinels of one group.
pub(crate) struct Sentinels {
    group: String,
    sentinels: Vec<ConnectionInfo>,
    server: ConnectionInfo,
    /// The credentials and the TLS settings for connections to the Sentinels.
    access: Access,
    /// The address of the primary according to the newest message of a Sentinel. If no Sentinel confirms this address
    /// when the client asks, the address that most Sentinels then name replaces it. `None` before the first message.
    moved_to: Watched<Option<ConnectionAddr>>,
    /// The tasks that listen to the Sentinels.
    listening: Mutex<Vec<AbortHandle>>,
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        lock(&self.listening).iter().for_each(AbortHandle::abort);
    }
}

/// Writes the URL of the group, without credentials.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redis+sentinel://")?;
        for (number, sentinel) in self.sentinels.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{}", sentinel.addr())?;
        }
        write!(f, "/{}", self.group)
    }
}

impl Sentinels {
    pub(crate) fn new(config: SentinelConfig, access: Access) -> Self {
        Self {
            group: config.group,
            sentinels: config.sentinels,
            server: config.server,
            access,
            moved_to: Watched::default(),
            listening: Mutex::default(),
        }
    }

    /// Asks all Sentinels for the address of the primary. Returns the address that more than half of them name, or the
    /// first answer that agrees with the newest message about a new primary. A Sentinel whose answer contradicts the
    /// other Sentinels or this message is possibly cut off from the group. Such an answer is therefore used only if too
    /// few other Sentinels answer.
    pub(crate) async fn primary(&self, context: &Arc<Context>) -> RedisResult<ConnectionAddr> {
        let moved_to = self.moved_to.get().clone();
        let mut until = context.now() + limits::ASK_PATIENCE;
        let mut answers = self.answers(context, until);
        let (mut votes, mut failure) = (Votes::default(), None);
        while let Some(Some(answer)) = context.timeout_at(until, answers.next()).await {
            match (answer, &moved_to) {
                (Ok(address), Some(now)) if *now == address => return Ok(address),
                (Ok(address), Some(_)) => votes.add(address),
                (Ok(address), None) => {
                    votes.add(address);
                    if let Some(address) = votes.majority(self.sentinels.len()) {
                        return Ok(address);
                    }
                    until = until.min(context.now() + limits::SENTINELS_REST);
                }
                // An error that a Sentinel returned is preferred, because it says more about the cause than a failed
                // connection does.
                (Err(error), _) if error.code() == Some(UNKNOWN_GROUP) => failure = Some(error),
                (Err(error), _) => failure = failure.or(Some(error)),
            }
        }
        if let Some(address) = votes.most() {
            if moved_to.is_some() {
                self.moved_to.replace(Some(address.clone()));
            }
            return Ok(address);
        }
        let nobody = (ErrorKind::InvalidClientConfig, "the URL names no Sentinel");
        Err(failure.unwrap_or_else(|| RedisError::from(nobody)))
    }

    /// Asks all Sentinels for the address of the primary. Returns their answers in the order in which the answers
    /// arrive, and waits for an answer until `until` at the latest.
    fn answers<'a>(
        &'a self,
        context: &'a Arc<Context>,
        until: Moment,
    ) -> FuturesUnordered<BoxFuture<'a, RedisResult<ConnectionAddr>>> {
        let asking = self.sentinels.iter().map(|sentinel| -> BoxFuture<'a, _> {
            Box::pin(async move {
                let answer = context.timeout_at(until, self.ask(context, sentinel)).await;
                answer.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            })
        });
        asking.collect()
    }

    /// Finds out whether there is a new primary about which this client has missed the message. Uses only an address
    /// that more than half of the Sentinels name, and still name after [`limits::SENTINELS_SETTLED`]. If a message arrives in the
    /// meantime, the address in the message is used instead.
    async fn catch_up(&self, context: &Arc<Context>) {
        let moved_to = self.moved_to.get().clone();
        let agreed = async || {
            let until = context.now() + limits::ASK_PATIENCE;
            let mut answers = self.answers(context, until);
            let mut votes = Votes::default();
            while let Some(answer) = answers.next().await {
                answer.into_iter().for_each(|address| votes.add(address));
            }
            votes.majority(self.sentinels.len())
        };
        let first = agreed().await;
        if first.is_none() || first == moved_to {
            return;
        }
        context.sleep(limits::SENTINELS_SETTLED).await;
        if agreed().await == first {
            self.moved_to.replace_if(|now| *now == moved_to, first);
        }
    }

    /// Returns the user, the password and the database of the servers of the group.
    pub(crate) fn settings(&self) -> &redis::RedisConnectionInfo {
        self.server.redis_settings()
    }

    /// Returns the settings for a connection to the server of the group with this address.
    pub(crate) fn server_at(&self, address: ConnectionAddr) -> ConnectionInfo {
        self.server.clone().set_addr(address)
    }

    async fn ask(
        &self,
        context: &Arc<Context>,
        sentinel: &ConnectionInfo,
    ) -> RedisResult<ConnectionAddr> {
        let (mut wire, _) = self.access.connect(context, sentinel, |_| {}).await?;
        let mut asking = redis::cmd("SENTINEL");
        asking.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.group);
        let named: Option<(String, u16)> = asking.query_async(&mut wire).await?;
        let Some((host, port)) = named else {
            return Err(redis::make_extension_error(UNKNOWN_GROUP.into(), None));
        };
        Ok(self.at(host, port))
    }

    /// Returns the address of a server of the group, with the TLS settings of the group.
    fn at(&self, host: String, port: u16) -> ConnectionAddr {
        match self.server.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        }
    }

    /// Waits until a Sentinel reports that a server other than `address` has become the primary.
    pub(crate) async fn moves_from(&self, address: &ConnectionAddr) {
        let elsewhere = |moved_to: &Option<ConnectionAddr>| {
            moved_to
                .as_ref()
                .is_some_and(|now| now != address)
                .then_some(())
        };
        self.moved_to.until(elsewhere).await;
    }

    /// Subscribes to the messages of each Sentinel about new primaries, until this value is dropped.
    pub(crate) fn listen(self: &Arc<Self>, context: &Arc<Context>) {
        let tasks = self.sentinels.iter().map(|sentinel| {
            let (group, access) = (Arc::downgrade(self), self.access.clone());
            let listening = listen_to(context.clone(), group, access, sentinel.clone());
            context.spawn(listening).abort_handle()
        });
        lock(&self.listening).extend(tasks);
    }

    /// Applies a Sentinel's message about a new primary: `<group> <old host> <old port> <new host> <new port>`.
    fn switched(&self, message: &str) {
        let fields: Vec<_> = message.split(' ').collect();
        let &[group, _, _, host, port] = &*fields else {
            return;
        };
        if group == self.group
            && let Ok(port) = port.parse()
        {
            tracing::info!(target: TARGET, %group, primary = %format_args!("{host}:{port}"), "a Sentinel names a new primary");
            self.moved_to.replace(Some(self.at(host.to_owned(), port)));
        }
    }
}

/// The addresses that Sentinels have named, each with the number of the Sentinels that have named it.
#[derive(Default)]
struct Votes(Vec<(ConnectionAddr, usize)>);

impl Votes {
    fn add(&mut self, address: ConnectionAddr) {
        match self.0.iter_mut().find(|(named, _)| *named == address) {
            Some((_, count)) => *count += 1,
            None => self.0.push((address, 1)),
        }
    }

    /// Returns the address that more than half of `sentinels` Sentinels have named.
    fn majority(&self, sentinels: usize) -> Option<ConnectionAddr> {
        let agreed = self.0.iter().find(|(_, count)| 2 * count > sentinels);
        agreed.map(|(address, _)| address.clone())
    }

    /// Returns the address that most Sentinels have named. If several addresses are named equally often, returns the
    /// first of them.
    fn most(self) -> Option<ConnectionAddr> {
        let most = self.0.into_iter().rev().max_by_key(|(_, count)| *count);
        most.map(|(address, _)| address)
    }
}

/// Receives the messages of one Sentinel about new primaries. Connects again if the connection is lost.
async fn listen_to(
    context: Arc<Context>,
    group: Weak<Sentinels>,
    access: Access,
    sentinel: ConnectionInfo,
) {
    let mut is_first = true;
    loop {
        let lost = Arc::new(Notify::new());
        let (told, losing) = (group.clone(), lost.clone());
        let receive = move |arrival| match arrival {
            Arrival::Push(push) if push.kind == PushKind::Message => {
                let mut fields = push.data.into_iter().map(String::from_redis_value);
                if let (Some(Ok(_)), Some(Ok(message)), Some(group)) =
                    (fields.next(), fields.next(), told.upgrade())
                {
                    group.switched(&message);
                }
            }
            Arrival::End => losing.notify_one(),
            Arrival::Push(_) | Arrival::Reply { .. } => {}
        };
        let listening = async {
            let (mut wire, _) = access.connect(&context, &sentinel, receive).await?;
            let mut subscribe = redis::cmd("SUBSCRIBE");
            subscribe.arg(SWITCHED).exec_async(&mut wire).await?;
            Ok::<_, RedisError>(wire)
        };
        let until = context.now() + limits::ASK_PATIENCE;
        if let Some(Ok(_wire)) = context.timeout_at(until, listening).await {
            // The client may have missed a message while it had no connection to the Sentinel.
            if !std::mem::take(&mut is_first)
                && let Some(group) = group.upgrade()
            {
                group.catch_up(&context).await;
            }
            lost.notified().await;
        }
        is_first = false;
        context.sleep(limits::SENTINEL_PAUSE).await;
    }
}
