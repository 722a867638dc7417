//! One connection to the server: its identity on the server, its health, and its token floor (the server's time when
//! the connection was made).

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use futures_util::future;
use lock_core::{backend::BoxFuture, lease::Moment};
use redis::{
    Cmd, ConnectionAddr, ErrorKind, FromRedisValue, PushKind, RedisError, ServerErrorKind, Value,
};

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    backend::redis::transport::{
        call_error::{CallError, Redirect},
        connector::Connector,
        health::Health,
        liveness::Readiness,
        script::Script,
        sentinel::NO_PRIMARY,
        shard_channels::ShardChannels,
        wait_connections::WaitConnections,
        wire::{Arrival, Wire},
    },
    background::{Context, parking::Parking},
    events::{Counters, TARGET, count, metrics},
    patience::{self, Line},
};

/// The token floor for a server that another server can replace: the greatest number that a script reads exactly. Every
/// token is below this floor, so each grant raises the token counter to the server's time. Two such servers can both
/// grant a lock, one after the other or at the same time. Their tokens then rise in the order of the grants, as far as
/// the clocks of the servers agree.
const FLOOR_OF_ANY_TIME: u64 = (1 << 53) - 1;

/// The identity of one connection on its server. A server never gives two connections the same ID during one run. After
/// a restart, the server counts IDs from one again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The server's run id, or `None` if the server does not reveal it.
    run: Option<String>,
    id: i64,
}

impl Identity {
    /// Returns whether both connections are known to belong to the same run of the same server. A restarted server
    /// carries out no command that was sent before the restart.
    pub(crate) fn is_of_the_run_of(&self, other: &Self) -> bool {
        self.run.is_some() && self.run == other.run
    }
}

/// A connection that is ready for use: it is subscribed to its notification channel, and has read its token floor.
pub(crate) struct Connection {
    pub(crate) identity: Identity,
    pub(crate) address: ConnectionAddr,
    /// The token floor: the server's time when the connection was made, in µs, or [`FLOOR_OF_ANY_TIME`]. A grant raises
    /// a token counter that is below the floor.
    pub(crate) floor: String,
    /// Whether this client can close its earlier connections on the server: the server permits `CLIENT KILL`, and
    /// reveals its run id.
    pub(crate) may_kill: bool,
    pub(crate) health: Arc<Health>,
    /// Server time minus local time, in µs, with an error of at most one round trip.
    clock_offset: i128,
    /// The connections to the same server on which calls wait for replicas.
    pub(crate) wait_connections: WaitConnections,
    /// The connection to the same server for shard channels. Only locks in Redisson's layout in a Redis Cluster use
    /// this connection.
    pub(crate) shard_channels: ShardChannels,
    /// The task that logs in again before the connection's credentials expire.
    _login: Option<AbortOnDropHandle<()>>,
    wire: Wire,
    /// Wakes the heartbeat of the session while a command is under way.
    parking: Arc<Parking>,
    context: Arc<Context>,
    readiness: Arc<Readiness>,
    line: Arc<Line>,
    counters: Arc<Counters>,
    /// Notified when the slot map of the Redis Cluster may be outdated. `None` outside of a cluster.
    outdated: Option<Arc<Notify>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("identity", &self.identity)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// A message that the server pushed.
pub(crate) struct Pushed {
    pub(crate) channel: String,
    pub(crate) payload: String,
    /// A local moment that is certainly before the server pushed the message.
    pub(crate) after: Moment,
}

impl Connection {
    /// Makes a connection. First closes the connection `previous` on the server, then subscribes to `channel`, and then
    /// reads the token floor.
    pub(crate) async fn open(
        connector: &Connector,
        channel: &str,
        previous: Option<Identity>,
        parking: Arc<Parking>,
        patience: Duration,
        on_push: impl Fn(Pushed) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let replaces = previous.is_some();
        let opening = Self::open_unbounded(connector, channel, previous, parking, on_push);
        let context = &connector.context;
        match context.timeout_at(context.now() + patience, opening).await {
            Some(opened) => {
                if replaces && opened.is_ok() {
                    metrics::reconnect();
                }
                opened
            }
            None => Err(connector.no_answer(patience)),
        }
    }

    async fn open_unbounded(
        connector: &Connector,
        channel: &str,
        previous: Option<Identity>,
        parking: Arc<Parking>,
        on_push: impl Fn(Pushed) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let health = Arc::new(Health::default());
        let (seen, line, clock) = (
            health.clone(),
            connector.line.clone(),
            connector.context.clone(),
        );
        let receive = move |arrival| match arrival {
            Arrival::Reply { sent } => {
                seen.answered(sent);
                line.note(clock.now().since(sent));
            }
            // The session may already use a connection to another server.
            Arrival::Push(push) if push.kind == PushKind::Message && !seen.is_broken() => {
                let mut fields = push.data.into_iter().map(String::from_redis_value);
                if let (Some(Ok(channel)), Some(Ok(payload))) = (fields.next(), fields.next()) {
                    on_push(Pushed {
                        channel,
                        payload,
                        after: seen.stamp(),
                    });
                }
            }
            Arrival::Push(_) => {}
            Arrival::End => seen.mark_lost("the connection was closed"),
        };
        let (wire, address, obtained) = connector.log_in(receive).await?;
        let asking_run = async || -> Result<Option<String>, RedisError> {
            let mut info = redis::cmd("INFO");
            info.arg("server");
            match info.query_async::<String>(&mut wire.clone()).await {
                Ok(info) => Ok(field(&info, "run_id").map(str::to_owned)),
                Err(error) if is_forbidden(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let asking_id = async || -> Result<i64, RedisError> {
            let mut id = redis::cmd("CLIENT");
            id.arg("ID").query_async(&mut wire.clone()).await
        };
        // The ID of the previous connection is valid only during the run of the server in which that connection was
        // made, so the server's run id is read first. Reading the run id takes one more round trip, but only for a
        // connection that replaces another connection.
        let previous = match &previous {
            Some(previous) if previous.run.is_some() => {
                let run = asking_run().await?;
                (run == previous.run).then_some(previous.id)
            }
            _ => None,
        };
        let closing = async |id: Option<i64>| match id {
            Some(id) => kill_command(id).exec_async(&mut wire.clone()).await,
            None => Ok(()),
        };
        // The commands below share one round trip, and the server carries them out in this order.
        let sent = connector.context.now();
        // The client name is not needed for locks, so a refusal of the command that sets the name is ignored.
        let naming = async {
            let mut name = redis::cmd("CLIENT");
            name.arg("SETNAME")
                .arg(accepted_name(&connector.application));
            name.exec_async(&mut wire.clone()).await
        };
        let asking_role = async {
            if !connector.is_group() {
                return Ok(None);
            }
            let role = redis::cmd("ROLE");
            let role: Vec<Value> = role.query_async(&mut wire.clone()).await?;
            let role = role.into_iter().next().unwrap_or(Value::Nil);
            String::from_redis_value(role)
                .map(Some)
                .map_err(RedisError::from)
        };
        let (role, closed, probed, _, run, id, subscribed, loaded, time) = tokio::join!(
            biased;
            asking_role,
            closing(previous),
            closing(Some(NOBODY)),
            naming,
            asking_run(),
            asking_id(),
            async {
                let mut subscribe = redis::cmd("SUBSCRIBE");
                subscribe.arg(channel).exec_async(&mut wire.clone()).await
            },
            async {
                let loaded: Result<(), RedisError> =
                    connector.scripts.query_async(&mut wire.clone()).await;
                loaded
            },
            async {
                let time: Result<(u64, u64), RedisError> =
                    redis::cmd("TIME").query_async(&mut wire.clone()).await;
                time
            },
        );
        let may_kill = |closed: Result<(), RedisError>| match closed {
            Ok(()) => Ok(true),
            Err(error) if is_forbidden(&error) => Ok(false),
            Err(error) => Err(error),
        };
        if let Some(role) = role?.filter(|role| role != "master") {
            let detail = format!("{address} is a {role}");
            return Err(redis::make_extension_error(NO_PRIMARY.into(), Some(detail)));
        }
        may_kill(closed)?;
        let (may_kill, run, id) = (may_kill(probed)?, run?, id?);
        subscribed?;
        if let Err(error) = loaded {
            tracing::debug!(target: TARGET, server = %connector.address(), %error, "cannot load the scripts when connecting; the client loads each script when it first runs the script");
        }
        let (seconds, micros) = time?;
        count(&connector.counters.connections);
        let server_micros = seconds * 1_000_000 + micros;
        let local_micros = sent.since_origin().as_micros();
        Ok(Self {
            may_kill: may_kill && run.is_some(),
            identity: Identity { run, id },
            address,
            floor: if connector.is_replaceable() {
                FLOOR_OF_ANY_TIME.to_string()
            } else {
                server_micros.to_string()
            },
            _login: connector.keep_logged_in(&wire, obtained),
            wire,
            parking,
            health,
            clock_offset: i128::from(server_micros)
                - i128::try_from(local_micros).unwrap_or_default(),
            wait_connections: WaitConnections::new(),
            shard_channels: ShardChannels::default(),
            context: connector.context.clone(),
            readiness: connector.readiness.clone(),
            line: connector.line.clone(),
            counters: connector.counters.clone(),
            outdated: connector.outdated.clone(),
        })
    }

    /// Returns how long to wait for an answer over this connection, if `near` is enough for a near server.
    pub(crate) fn patience(&self, near: Duration) -> Duration {
        patience::for_answer(near, self.line.round_trip())
    }

    /// Returns the server's time at a local moment, in µs, with an error of at most one round trip.
    pub(crate) fn server_micros(&self, at: Moment) -> i128 {
        i128::try_from(at.since_origin().as_micros()).unwrap_or(i128::MAX) + self.clock_offset
    }

    /// Runs a script. Returns its answer, and the moment at which the command was sent.
    pub(crate) fn run<'a>(
        &'a self,
        script: &'a Script,
        keys: &[&str],
        args: &[impl AsRef<str>],
    ) -> BoxFuture<'a, Result<(Value, Moment), CallError>> {
        self.run_while(script, keys, args, &|| true)
    }

    /// Runs a script as [`run`](Self::run) does. If the server has forgotten its scripts, sends the script a second time
    /// only if `is_wanted` returns true.
    pub(crate) fn run_while<'a>(
        &'a self,
        script: &'a Script,
        keys: &[&str],
        args: &[impl AsRef<str>],
        is_wanted: &'a (dyn Fn() -> bool + Sync),
    ) -> BoxFuture<'a, Result<(Value, Moment), CallError>> {
        let by_hash = script.by_hash(keys, args);
        // The future is boxed, so that the future of a caller stays small while the caller waits for its turn.
        Box::pin(async move {
            let answer = self.send(&by_hash).await;
            let answer = match answer {
                // The server has forgotten its scripts, and has not run this one.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    if !is_wanted() {
                        return Err(CallError::NotReady(error.to_string()));
                    }
                    self.send(&script.by_source(&by_hash)).await
                }
                answer => answer,
            };
            if metrics::ENABLED
                && let Ok((_, sent)) = &answer
            {
                metrics::script(&script.name, self.context.now().since(*sent));
            }
            let answer = answer.and_then(|(reply, sent)| Ok((script.checked(reply)?, sent)));
            answer.map_err(|error| self.failed(&error))
        })
    }

    /// Runs a script for a lock whose slot is moving to this server.
    pub(crate) fn run_while_moving<'a>(
        &'a self,
        script: &'a Script,
        keys: &[&str],
        args: &[impl AsRef<str>],
    ) -> BoxFuture<'a, Result<(Value, Moment), CallError>> {
        let by_source = script.by_source(&script.by_hash(keys, args));
        Box::pin(async move {
            let answer = self.send_as(&by_source, true).await;
            let answer = answer.and_then(|(reply, sent)| Ok((script.checked(reply)?, sent)));
            answer.map_err(|error| self.failed(&error))
        })
    }

    /// Sends a command. Unlike the other methods, does not change the connection's health after an error.
    pub(crate) async fn try_command(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.send(command).await.map(|(value, _)| value)
    }

    /// Subscribes to a channel if `listening` is set, and otherwise unsubscribes from it.
    pub(crate) async fn listen(&self, channel: &str, listening: bool) -> Result<(), CallError> {
        let verb = if listening {
            "SUBSCRIBE"
        } else {
            "UNSUBSCRIBE"
        };
        let mut command = redis::cmd(verb);
        command.arg(channel);
        let listened = self.send(&command).await;
        listened.map(drop).map_err(|error| self.failed(&error))
    }

    /// Publishes a message on a channel, or on a shard channel if `sharded` is set.
    pub(crate) async fn say(
        &self,
        channel: &str,
        text: &str,
        sharded: bool,
    ) -> Result<(), CallError> {
        let mut command = redis::cmd(if sharded { "SPUBLISH" } else { "PUBLISH" });
        command.arg(channel).arg(text);
        let said = self.send(&command).await;
        said.map(drop).map_err(|error| self.failed(&error))
    }

    /// Runs one step of a walk through the server's keys that match `pattern`.
    pub(crate) async fn scan(
        &self,
        cursor: u64,
        pattern: &str,
        count: usize,
    ) -> Result<Value, CallError> {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(pattern);
        command.arg("COUNT").arg(count);
        let found = self.send(&command).await;
        found
            .map(|(value, _)| value)
            .map_err(|error| self.failed(&error))
    }

    /// Checks whether the server answers the command `TIME`. The handshake also uses `TIME`, so the Redis user is
    /// permitted to run it.
    pub(crate) async fn ask_time(&self) -> Result<(), CallError> {
        let time = self.send(&redis::cmd("TIME")).await;
        time.map(drop).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &RedisError) -> CallError {
        let error = self.failed_beside(error);
        match &error {
            CallError::Moved(_) => {}
            // The slot of the lock is moving to another server. Until the move is over, commands for the locks of this
            // slot can fail.
            CallError::Ask(_) => self.readiness.note(self.context.now()),
            CallError::Broken(detail) => self.health.mark_lost(detail),
            CallError::Demoted(detail) => {
                self.readiness.note(self.context.now());
                self.health.mark_lost_and_demoted(detail);
            }
            CallError::NotReady(_) => self.readiness.note(self.context.now()),
            CallError::Refused(_) => {}
        }
        error
    }

    /// Returns the reason why a command failed that was sent to the same server over another connection. Does not change
    /// the health of this connection.
    pub(crate) fn failed_beside(&self, error: &RedisError) -> CallError {
        let error = match self.redirected(error) {
            Some(redirected) => redirected,
            None => CallError::of(error),
        };
        if let (CallError::NotReady(_), Some(outdated)) = (&error, &self.outdated) {
            outdated.notify_one(); // the cluster may be about to replace the server
        }
        error
    }

    /// In a Redis Cluster, returns the redirection that the server's error contains, if there is one.
    fn redirected(&self, error: &RedisError) -> Option<CallError> {
        self.outdated.as_ref()?;
        let redirected = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => CallError::Moved,
            ErrorKind::Server(ServerErrorKind::Ask) => CallError::Ask,
            _ => return None,
        };
        Redirect::of(error, &self.address).map(redirected)
    }

    async fn send(&self, command: &Cmd) -> Result<(Value, Moment), RedisError> {
        self.send_as(command, false).await
    }

    /// Sends a command. If `asking` is set, the server also carries out the command while the slot of its keys is still
    /// moving to this server.
    async fn send_as(&self, command: &Cmd, asking: bool) -> Result<(Value, Moment), RedisError> {
        let health = &*self.health;
        let given_up = || {
            RedisError::from(std::io::Error::new(
                std::io::ErrorKind::ConnectionReset,
                "the connection was given up",
            ))
        };
        if health.is_broken() {
            return Err(given_up());
        }
        count(&self.counters.commands);
        let (sent, reply) = if asking {
            self.wire.send_asking(command)?
        } else {
            self.wire.send(command)?
        };
        self.parking.watch();
        let mut reply = pin!(reply.receive());
        let reply = tokio::select! {
            biased;
            // The caller can be polled long after the reply came. Meanwhile, the session may have connected to another
            // server, whose grants the reply does not know.
            reply = &mut reply => if health.is_replaced() { Err(given_up()) } else { reply },
            () = health.until_broken() => Err(given_up()),
        };
        Ok((reply?.extract_error()?, sent))
    }

    /// Returns whether no command is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.wire.is_idle()
    }

    /// Returns for how long commands have been under way without a reply, or zero if no command is under way.
    pub(crate) fn silent_for(&self, now: Moment) -> Duration {
        self.wire.silent_for(now)
    }

    /// Returns the failure of a request that reached the server after its time limit, and so changed nothing. The server's
    /// clock was set forward, or the request was delayed. The session gives up this connection, and reads the server's time
    /// again over the next one.
    pub(crate) fn too_late(&self) -> CallError {
        self.health.mark_demoted();
        CallError::Demoted("the request came too late".into())
    }

    /// Returns whether a reply has arrived since `moment`.
    pub(crate) fn has_replied_since(&self, moment: Moment) -> bool {
        self.wire.has_replied_since(moment)
    }

    /// Returns the run id and the eviction policy of the server.
    pub(crate) async fn incarnation(&self) -> Result<Incarnation, CallError> {
        let (server, memory) = future::try_join(self.info("server"), self.info("memory"))
            .await
            .map_err(|error| CallError::of(&error))?;
        Ok(Incarnation {
            run_id: field(&server, "run_id").unwrap_or_default().to_owned(),
            eviction: field(&memory, "maxmemory_policy").map(str::to_owned),
        })
    }

    /// Returns the mode and the eviction policy of the server. Both fields are `None` if the user is not permitted to
    /// read them and `may_be_silent` is set.
    pub(crate) async fn server_info(&self, may_be_silent: bool) -> Result<ServerInfo, CallError> {
        match future::try_join(self.info("server"), self.info("memory")).await {
            Ok((server, memory)) => Ok(ServerInfo {
                mode: field(&server, "redis_mode").map(str::to_owned),
                eviction: field(&memory, "maxmemory_policy").map(str::to_owned),
            }),
            Err(error) if may_be_silent && is_forbidden(&error) => Ok(ServerInfo::default()),
            Err(error) => Err(CallError::of(&error)),
        }
    }

    async fn info(&self, section: &str) -> Result<String, RedisError> {
        let (info, _) = self.send(redis::cmd("INFO").arg(section)).await?;
        Ok(redis::from_redis_value(info)?)
    }
}

/// The mode and the eviction policy of a server. A field is `None` if the server does not reveal its value.
#[derive(Debug, Default)]
pub(crate) struct ServerInfo {
    /// `standalone`, `cluster` or `sentinel`.
    pub(crate) mode: Option<String>,
    /// The eviction policy that the server applies when its memory is full.
    pub(crate) eviction: Option<String>,
}

/// The run id and the eviction policy of a node of a Redlock.
pub(crate) struct Incarnation {
    /// The server's run id, which differs from the run ids of all other servers, and changes with each restart.
    pub(crate) run_id: String,
    /// The eviction policy that the node applies when its memory is full, if the node reveals it.
    pub(crate) eviction: Option<String>,
}

/// Returns the value of one field in the answer to `INFO`.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    info.lines().find_map(value).map(str::trim)
}

/// An ID that no connection has. The server's answer to a command that closes the connection with this ID shows whether
/// the user is allowed to close connections.
const NOBODY: i64 = i64::MAX;

/// Returns the command that closes the connection with this ID. The command does nothing if no connection has this ID.
fn kill_command(id: i64) -> Cmd {
    let mut command = redis::cmd("CLIENT");
    command.arg("KILL").arg("ID").arg(id);
    command
}

/// Returns whether the error says that the server's ACL forbids the command to this user.
fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
}

/// Replaces each character that a server does not accept in the name of a connection by `-`.
fn accepted_name(name: &str) -> String {
    let accepted = |char: char| if char.is_ascii_graphic() { char } else { '-' };
    name.chars().map(accepted).collect()
}
