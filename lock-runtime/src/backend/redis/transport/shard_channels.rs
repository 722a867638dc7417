//! The shard channels to which a session is subscribed. In a Redis Cluster, Redisson announces releases on shard
//! channels if the servers have them (Redis 7.0 or later).
//!
//! Shard channels need a connection of their own. When a slot moves to another server, the old server ends the
//! subscriptions to the slot's channels with a push message that looks like the answer to `SUNSUBSCRIBE`. If this command
//! is under way for the same channel, the server answers it, too. This second answer looks like the answer to the next
//! command. From then on, each answer would reach the wrong caller. A caller could thus take a lock that the server has
//! granted to another caller.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use redis::{
    Cmd, ConnectionAddr, ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError,
    ServerErrorKind, Value,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    backend::redis::transport::{
        call_error::CallError,
        connector::Connector,
        wire::{Arrival, Wire},
    },
    background::{Context, lock},
    limits,
};

/// The answer to a request to subscribe to a shard channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subscribed {
    /// The session was already subscribed to the channel.
    Already,
    Newly,
    /// Another server stores the slot of the channel.
    Elsewhere,
    /// The server has no shard channels, because it is older than Redis 7.0.
    Unsupported,
}

/// The connection of one session to one server for shard channels. When the session connects again, it also replaces
/// this connection for shard channels.
#[derive(Default)]
pub(crate) struct ShardChannels {
    /// Locked while a command is under way, so that the connection carries one command at a time.
    link: tokio::sync::Mutex<Link>,
}

#[derive(Default)]
enum Link {
    #[default]
    Unopened,
    Open(ShardConnection),
    Unsupported,
}

struct ShardConnection {
    redis: Wire,
    state: Arc<State>,
    _login: Option<AbortOnDropHandle<()>>,
}

/// The state of a connection for shard channels, according to the messages that the server has pushed so far.
#[derive(Default)]
struct State {
    /// The channels to which the connection is subscribed. Only push messages change this set, because an answer
    /// possibly belongs to another command.
    subscribed: Mutex<BTreeSet<String>>,
    is_closed: AtomicBool,
}

impl State {
    fn has(&self, channel: &str) -> bool {
        !self.is_closed.load(Ordering::Acquire) && lock(&self.subscribed).contains(channel)
    }

    /// Records a push message. Calls `wake` if the session has to check the lock of a channel again.
    fn pushed(&self, push: PushInfo, wake: &impl Fn(&str)) {
        let channel = push.data.into_iter().next();
        let channel = channel.map(String::from_redis_value);
        match (push.kind, channel) {
            (PushKind::SSubscribe, Some(Ok(channel))) => {
                lock(&self.subscribed).insert(channel);
            }
            (PushKind::SUnsubscribe, Some(Ok(channel))) => {
                lock(&self.subscribed).remove(&channel);
                // The slot of the channel may have moved to another server.
                wake(&channel);
            }
            (PushKind::SMessage, Some(Ok(channel))) => wake(&channel),
            _ => {}
        }
    }
}

impl ShardChannels {
    /// Subscribes to a shard channel of the server at `address`. Calls `wake` with the name of the channel when a
    /// message arrives, and when the server ends the subscription.
    pub(crate) async fn subscribe(
        &self,
        connector: &Connector,
        address: &ConnectionAddr,
        channel: &str,
        wake: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Subscribed, CallError> {
        let context = &connector.context;
        let mut link = self.link.lock().await;
        let connection = match &mut *link {
            Link::Unsupported => return Ok(Subscribed::Unsupported),
            Link::Open(open) if open.state.has(channel) => return Ok(Subscribed::Already),
            Link::Open(open) if !open.state.is_closed.load(Ordering::Acquire) => open,
            unopened => {
                *unopened = Link::Unopened;
                let opening = ShardConnection::open(connector, address, wake);
                match within(context, opening).await {
                    Ok(Some(open)) => *unopened = Link::Open(open),
                    Ok(None) => {
                        *unopened = Link::Unsupported;
                        return Ok(Subscribed::Unsupported);
                    }
                    Err(error) => return Err(CallError::of(&error)),
                }
                let Link::Open(open) = unopened else {
                    unreachable!("the connection was opened");
                };
                open
            }
        };
        let mut command = redis::cmd("SSUBSCRIBE");
        command.arg(channel);
        let answer = connection.send(context, &command).await;
        if connection.state.has(channel) {
            return Ok(Subscribed::Newly);
        }
        // The answer may have been meant for another command, so the connection is not used any longer.
        *link = Link::Unopened;
        match answer {
            Err(error) if is_elsewhere(&error) => Ok(Subscribed::Elsewhere),
            Err(error) => Err(CallError::of(&error)),
            Ok(_) => Err(CallError::Broken("the subscription has ended".into())),
        }
    }

    /// Ends the subscription to a shard channel. Returns false if the session does not use shard channels.
    pub(crate) async fn unsubscribe(&self, context: &Context, channel: &str) -> bool {
        let mut link = self.link.lock().await;
        let Link::Open(connection) = &mut *link else {
            return false;
        };
        if connection.state.has(channel) {
            let mut command = redis::cmd("SUNSUBSCRIBE");
            command.arg(channel);
            let _ = connection.send(context, &command).await;
            if connection.state.has(channel) {
                *link = Link::Unopened; // the server ends the subscriptions of a connection that is closed
            }
        }
        true
    }
}

impl ShardConnection {
    /// Makes the connection. Returns `None` if the server has no shard channels. Fails if the connector reaches a
    /// server other than `address`.
    async fn open(
        connector: &Connector,
        address: &ConnectionAddr,
        wake: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Option<Self>, RedisError> {
        let state = Arc::new(State::default());
        let pushed = state.clone();
        let receive = move |arrival| match arrival {
            Arrival::Push(push) => pushed.pushed(push, &wake),
            Arrival::End => pushed.is_closed.store(true, Ordering::Release),
            Arrival::Reply { .. } => {}
        };
        let (mut redis, reached, obtained) = connector.log_in(receive).await?;
        if reached != *address {
            return Err(std::io::Error::other("another server is the primary now").into());
        }
        // Redisson uses the same command to decide whether it uses shard channels.
        let mut counting = redis::cmd("PUBSUB");
        counting.arg("SHARDNUMSUB");
        match counting.exec_async(&mut redis).await {
            Ok(()) => Ok(Some(Self {
                _login: connector.keep_logged_in(&redis, obtained),
                redis,
                state,
            })),
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn send(&mut self, context: &Context, command: &Cmd) -> Result<Value, RedisError> {
        let answer = within(context, command.query_async(&mut self.redis)).await;
        answer.and_then(Value::extract_error)
    }
}

/// Waits for an answer for at most [`limits::COMMAND_PATIENCE`].
async fn within<T>(
    context: &Context,
    asking: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let until = context.now() + limits::COMMAND_PATIENCE;
    match context.timeout_at(until, asking).await {
        Some(answer) => answer,
        None => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

fn is_elsewhere(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)
    )
}
