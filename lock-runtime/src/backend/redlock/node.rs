//! A node of a Redlock, which is one server. Sends the node requests that never queue, and reads the mark that shows
//! whether the node still has its state.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{BackendError, Request},
    fencing::FencingToken,
    key::{FENCE, LockName},
    layout::Layout,
    lease::Moment,
    owner::OwnerId,
};
use redis::Value;
use tokio::sync::Notify;

use crate::{
    backend::redis::{
        protocol::{
            command::{Arg, millis},
            request::not_understood,
            scripts,
        },
        queue::{
            cleanup::{Sent, clean_up},
            server::Server,
        },
        transport::{call_error::CallError, connection::Connection, connector::Destination},
    },
    background::{Context, TrackedTask, lock, watched::Watched},
    connect_error::ConnectError,
    events::{Counters, TARGET},
    limits,
};

/// The key of a node's mark. A node that loses its state loses this key too.
const MARK: &str = "lock:fence:whole";
/// The reason why a node without a mark is not counted.
pub(crate) const LOST: &str = "it has started without its state, and is not counted yet";

/// Records why a command was not answered or not carried out, and returns the error. The calling code does not repeat
/// the command, because a Redlock relies on its other nodes instead.
fn failed(server: &Server, error: CallError) -> BackendError {
    let detail = error.to_string();
    match server.note_failure(error) {
        Ok(_) => BackendError::Unreachable(detail),
        Err(error) => error,
    }
}

/// Waits for the answer of a node, but no longer than until this moment.
pub(crate) async fn answer_by<T>(
    context: &Context,
    until: Moment,
    answer: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let answer = context.timeout_at(until, answer).await;
    answer.unwrap_or_else(|| Err(BackendError::Unreachable("no answer".into())))
}

/// Whether a node still has its state, according to its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The node has kept all state since the last loss of its state. A client saw that loss at `since`. `longest` is
    /// the longest lease in the node's mark.
    Whole { since: u64, longest: Duration },
    /// The node is new, or has lost its state. A client first saw the node without a mark at `since`, which was `age`
    /// ago.
    Lost { since: u64, age: Duration },
}

/// The state of a node as far as this client knows it.
#[derive(Debug, Default)]
struct Memory {
    /// The open connections over which the node has reported its run id and its eviction policy.
    asked: Vec<Weak<Connection>>,
    run_id: String,
    /// The newest value of the node's token counter that this client has seen.
    newest: u64,
    /// Whether the node's newest answer showed that the node had lost its state.
    is_lost: bool,
    /// The node's eviction policy, if this policy can delete the keys of held locks and the client does not allow such
    /// a policy.
    evicts: Option<String>,
}

/// One node of a Redlock. Several nodes decide about a lock together.
pub(crate) struct Node {
    server: Arc<Server>,
    allow_eviction: bool,
    memory: Mutex<Memory>,
    asking: tokio::sync::Mutex<()>,
    /// The owners whose attempts on this node are not settled. The engine may still give back the grants of these owners,
    /// by a request that names only the owner.
    unsettled: Watched<HashSet<OwnerId>>,
    /// Notified when this client sees that the node has lost its state.
    lost: Arc<Notify>,
    warned: AtomicBool,
    /// Whether the newest request for a lock that was sent to this node failed, or was not answered in time.
    silent: AtomicBool,
}

impl Node {
    /// Creates a node, without connecting to it.
    pub(crate) fn open(
        info: Destination,
        allow_eviction: bool,
        context: &Arc<Context>,
        counters: &Arc<Counters>,
        lost: Arc<Notify>,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            server: Server::open(info, Layout::Native, context, counters)?,
            allow_eviction,
            lost,
            memory: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            unsettled: Watched::default(),
            warned: AtomicBool::new(false),
            silent: AtomicBool::new(false),
        })
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Connects to the node, and returns an error if the node cannot be used for locks. After a failure, the node's
    /// session keeps trying to connect.
    pub(crate) async fn connect(self: &Arc<Self>, patience: Duration) -> Result<(), ConnectError> {
        let started = self.server.now();
        let node = self.server.sessions.only().clone();
        self.server.check(self.allow_eviction, patience).await?;
        let asking = async {
            let connection = node.connection().await?;
            self.ask(&connection).await
        };
        let detail = match self
            .server
            .context
            .timeout_at(started + patience, asking)
            .await
        {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => error.to_string(),
            None => "no answer".to_owned(),
        };
        Err(ConnectError::Unreachable {
            server: self.server.address().to_owned(),
            waited: self.server.now().since(started),
            detail,
        })
    }

    fn has_asked(&self, connection: &Arc<Connection>) -> bool {
        let is_this = |asked: &Weak<Connection>| {
            std::ptr::eq(asked.as_ptr(), Arc::as_ptr(connection)) && asked.strong_count() > 0
        };
        lock(&self.memory).asked.iter().any(is_this)
    }

    /// Reads the run id and the eviction policy of the server, once for each connection. A connection does not outlast
    /// a restart of the server, so a second read would find the same run id.
    async fn ask(self: &Arc<Self>, connection: &Arc<Connection>) -> Result<(), BackendError> {
        if self.has_asked(connection) {
            return Ok(());
        }
        // The task runs to its end even if the caller stops waiting. If the task ended with the caller, a node that
        // answers only after its callers have stopped waiting could never be used.
        let (node, connection) = (self.clone(), connection.clone());
        let asking = self.server.context.spawn(async move {
            let _asking = node.asking.lock().await;
            if node.has_asked(&connection) {
                return Ok(());
            }
            let asking = async {
                let seen = connection.incarnation().await;
                let seen = seen.map_err(|error| failed(&node.server, error))?;
                let evicts = node.evicting(seen.eviction);
                // The script that reads the mark writes the run id into the mark of a node that has lost its state. The
                // run id therefore has to be known first.
                lock(&node.memory).run_id = seen.run_id;
                if evicts.is_none() {
                    // Reading the mark detects a node that has restarted with an older state.
                    node.read_mark(&connection, Duration::ZERO).await?;
                }
                let mut memory = lock(&node.memory);
                memory.asked.retain(|asked| asked.strong_count() > 0);
                memory.asked.push(Arc::downgrade(&connection));
                memory.evicts = evicts;
                Ok(())
            };
            match node
                .server
                .context
                .timeout_at(node.server.now() + limits::OPEN_PATIENCE, asking)
                .await
            {
                Some(asked) => asked,
                None => {
                    connection.health.mark_broken();
                    Err(BackendError::Unreachable("no answer".into()))
                }
            }
        });
        let asked = asking.await;
        asked.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))
    }

    /// Returns the eviction policy if it can delete the keys of held locks, and the client does not allow such a
    /// policy.
    fn evicting(&self, policy: Option<String>) -> Option<String> {
        policy.filter(|policy| policy != "noeviction" && !self.allow_eviction)
    }

    /// Reads the node's mark. If the node has its state and `lease` is longer than the longest lease in the mark,
    /// raises the longest lease in the mark to `lease`.
    pub(crate) async fn probe(self: &Arc<Self>, lease: Duration) -> Result<Standing, BackendError> {
        let until = self.server.now() + limits::ASK_PATIENCE;
        let reading = async {
            let connection = self.fit().await?;
            self.read_mark(&connection, lease).await
        };
        answer_by(&self.server.context, until, reading).await
    }

    /// Returns a connection to the node. Fails if the node does not answer, or if the node can evict the keys of held
    /// locks.
    async fn fit(self: &Arc<Self>) -> Result<Arc<Connection>, BackendError> {
        let connection = self.server.sessions.only().connection().await?;
        self.ask(&connection).await?;
        match self.evicts() {
            Some(reason) => Err(self.not_counted(&reason)),
            None => Ok(connection),
        }
    }

    async fn read_mark(
        &self,
        connection: &Connection,
        lease: Duration,
    ) -> Result<Standing, BackendError> {
        let newest = lock(&self.memory).newest;
        let (lease, token, run) = (millis(lease), newest.to_string(), self.run_id());
        let args: [&str; 3] = [&lease, &token, &run];
        let read = connection
            .run(&scripts::quorum::QUORUM_PROBE, &[MARK, FENCE], &args)
            .await;
        let (answer, _) = read.map_err(|error| failed(&self.server, error))?;
        let (state, since, fence, time): (String, u64, u64, u64) =
            redis::from_redis_value(answer).map_err(|error| not_understood(&error))?;
        let time = Duration::from_millis(time);
        let standing = if state == "whole" {
            Standing::Whole {
                since,
                longest: time,
            }
        } else {
            Standing::Lost { since, age: time }
        };
        {
            let mut memory = lock(&self.memory);
            // If a grant has raised `newest` while the mark was read, the raised value is kept.
            if memory.newest == newest {
                memory.newest = fence;
            }
        }
        self.set_lost(matches!(standing, Standing::Lost { .. }));
        Ok(standing)
    }

    /// Lets the node grant locks again. The node must first have been seen without its state at `since`, at least `age`
    /// ago. Writes `longest` into the node's new mark. Returns `false` if another client has admitted the node already,
    /// if the node has lost its state again, or if less time than `age` has passed.
    pub(crate) async fn admit(
        &self,
        since: u64,
        age: Duration,
        longest: Duration,
    ) -> Result<bool, BackendError> {
        let until = self.server.now() + limits::ASK_PATIENCE;
        let admitting = async {
            let connection = self.server.sessions.only().connection().await?;
            let (since, age, longest) = (since.to_string(), millis(age), millis(longest));
            let args: [&str; 4] = [&since, &age, &longest, &self.run_id()];
            let admitted = connection
                .run(&scripts::quorum::QUORUM_ADMIT, &[MARK, FENCE], &args)
                .await;
            let (answer, _) = admitted.map_err(|error| failed(&self.server, error))?;
            Ok(answer == Value::Int(1))
        };
        answer_by(&self.server.context, until, admitting).await
    }

    /// Copies a grant of a majority to this node, with a lease that ends at `until`. Returns `false` if the node did
    /// not get the grant, for example because the lock is not free on the node.
    pub(crate) async fn rejoin(
        &self,
        name: &LockName,
        token: FencingToken,
        owner: OwnerId,
        until: Moment,
    ) -> Result<bool, BackendError> {
        let lease = until.since(self.server.now());
        if lease.is_zero() || self.evicts().is_some() {
            return Ok(false);
        }
        let (token, lease) = (token.to_string(), millis(lease));
        let tail = format!(
            "{lease}|{}|{owner}",
            self.server.sessions.only().session().session_id
        );
        let args = [
            Arg::Text(&token),
            Arg::Text(&tail),
            Arg::Text(&lease),
            Arg::At(self.server.now() + limits::REQUEST_LIFE),
        ];
        let keys = [
            self.server.names(name).grant().to_owned(),
            FENCE.into(),
            MARK.into(),
        ];
        let keys = keys.each_ref().map(String::as_str);
        let answered = self
            .server
            .run(name, &scripts::quorum::QUORUM_REJOIN, &keys, &args)
            .await?;
        if answered.value == Value::Int(-2) {
            self.set_lost(true);
        }
        Ok(answered.value == Value::Int(1))
    }

    /// Waits until the engine no longer gives back the grant of this owner on this node. The grant then stays on the node
    /// until the hold is released or its lease ends. An owner has only one attempt on a node, so this stays true. Returns
    /// whether this method had to wait.
    pub(crate) async fn settled(&self, owner: OwnerId) -> bool {
        let mut has_waited = false;
        let is_settled = |unsettled: &HashSet<OwnerId>| {
            let is_settled = !unsettled.contains(&owner);
            has_waited |= !is_settled;
            is_settled.then_some(())
        };
        self.unsettled.until(is_settled).await;
        has_waited
    }

    fn note_settled(&self, owner: OwnerId) {
        self.unsettled.change(|unsettled| unsettled.remove(&owner));
    }

    pub(crate) fn run_id(&self) -> String {
        lock(&self.memory).run_id.clone()
    }

    fn knows(&self, token: FencingToken) {
        let mut memory = lock(&self.memory);
        memory.newest = memory.newest.max(token.get());
    }

    fn evicts(&self) -> Option<String> {
        let memory = lock(&self.memory);
        let policy = memory.evicts.as_ref()?;
        Some(format!("it evicts keys (maxmemory-policy {policy})"))
    }

    /// Records whether the node's newest answer shows that the node has lost its state.
    fn set_lost(&self, is_lost: bool) {
        lock(&self.memory).is_lost = is_lost;
        if is_lost {
            self.lost.notify_one();
        }
    }

    /// Returns whether the node's newest answer showed that the node had lost its state.
    pub(crate) fn was_lost(&self) -> bool {
        lock(&self.memory).is_lost
    }

    /// Records why the node's grants do not count at the moment, and returns this reason as an error.
    pub(crate) fn not_counted(&self, reason: &str) -> BackendError {
        let server = &self.server;
        if !self.warned.swap(true, Ordering::AcqRel) {
            tracing::warn!(target: TARGET, server = %server.address(), reason, "a node is not counted");
        }
        server.note(reason.to_owned());
        BackendError::Unreachable(reason.to_owned())
    }

    /// Requests a lock from this node once. The calling code has to [`settle`](NodeAttempt::settle) or drop the
    /// returned attempt, whatever the node's answer is.
    pub(crate) async fn take(
        self: &Arc<Self>,
        request: &Request,
    ) -> (NodeAttempt, Result<Option<FencingToken>, BackendError>) {
        self.unsettled.get().insert(request.owner);
        let mut attempt = NodeAttempt {
            node: self.clone(),
            owner: request.owner,
            sent: None,
        };
        let taken = attempt.take(request).await;
        // A node that refuses cannot complete a majority either, so it counts as silent.
        self.silent.store(taken.is_err(), Ordering::Release);
        (attempt, taken)
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// Records that the node has not answered a request in time.
    pub(crate) fn note_silence(&self) {
        self.silent.store(true, Ordering::Release);
    }
}

/// The request that was sent to a node for one acquisition.
struct Carried {
    sent: Sent,
    connection: Arc<Connection>,
    task: TrackedTask,
}

/// One acquisition on one node. If the attempt is dropped before it is settled, the engine gives back any grant of the
/// attempt in the background.
pub(crate) struct NodeAttempt {
    node: Arc<Node>,
    owner: OwnerId,
    /// The request that was sent to the node, or `None` if there is nothing to give back.
    sent: Option<Carried>,
}

impl NodeAttempt {
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn is_of(&self, node: &Arc<Node>) -> bool {
        Arc::ptr_eq(&self.node, node)
    }

    async fn take(&mut self, request: &Request) -> Result<Option<FencingToken>, BackendError> {
        let node = self.node.clone();
        let server = &node.server;
        if server.is_shutting_down() {
            return Err(BackendError::ShutDown);
        }
        let connection = node.fit().await?;
        let session = server.sessions.only().session().clone();
        let request = Request {
            wait: Duration::ZERO,
            ..request.clone()
        };
        let asked = Arc::new(server.acquire_request(&request, &session));
        asked.ask();
        asked.carry(&connection);
        let sent = self.sent.insert(Carried {
            sent: Sent {
                session,
                request: asked.clone(),
            },
            connection,
            task: server.track_acquisition(),
        });
        let connection = &sent.connection;
        let life_ends = server.now() + limits::REQUEST_LIFE;
        let keys = [asked.names.grant(), FENCE, MARK];
        let not_after = connection.server_micros(life_ends).to_string();
        let (tail, lease) = (asked.tail(connection), millis(asked.lease));
        let taken = connection
            .run(
                &scripts::quorum::QUORUM_TAKE,
                &keys,
                &[&tail, &lease, &connection.floor, &not_after],
            )
            .await;
        if taken.is_ok() {
            asked.answered();
        }
        let answer = match taken {
            Ok((Value::Int(answer), _)) => answer,
            Ok((answer, _)) => return Err(not_understood(&format_args!("{answer:?}"))),
            Err(error) => {
                let error = failed(server, error);
                if !matches!(error, BackendError::Unreachable(_)) {
                    self.settle(); // the node refused the request, and changed nothing
                }
                return Err(error);
            }
        };
        if let Ok(token) = u64::try_from(answer)
            && token > 0
        {
            let token = FencingToken::new(token);
            node.set_lost(false);
            node.warned.store(false, Ordering::Release);
            node.knows(token);
            return Ok(Some(token));
        }
        if answer == -1 && server.now() < life_ends {
            // The server's clock was set forward. The connection is given up, so that the engine reads the server's
            // time again over the next connection.
            connection.health.mark_demoted();
        }
        // The request was sent only once, and the node's answer shows that the request changed nothing, so nothing has
        // to be given back.
        self.settle();
        match answer {
            0 => Ok(None),
            -1 => Err(BackendError::Unreachable(
                "the request came too late".into(),
            )),
            _ => {
                node.set_lost(true);
                Err(node.not_counted(LOST))
            }
        }
    }

    /// Sends the node the token on which the nodes agreed. Returns false if the node no longer has the grant.
    pub(crate) async fn raise_token(&mut self, token: FencingToken) -> Result<bool, BackendError> {
        let Some(Carried {
            sent, connection, ..
        }) = &self.sent
        else {
            return Ok(false);
        };
        let (owner, number) = (sent.request.owner.to_string(), token.to_string());
        let keys = [sent.request.names.grant(), FENCE];
        // The token is sent over the connection that carried the request for the lock. If the grant is given back later
        // over the same connection, the server receives that command after the request and after the token.
        let args = [owner.as_str(), &number];
        match connection
            .run(&scripts::quorum::QUORUM_RAISE_TOKEN, &keys, &args)
            .await
        {
            Ok((Value::Int(1), _)) => {
                self.node.knows(token);
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) => Err(failed(&self.node.server, error)),
        }
    }

    /// Ends the attempt without giving the grant back. From now on, the release of the hold also ends this grant.
    pub(crate) fn settle(&mut self) {
        self.sent = None;
        self.node.note_settled(self.owner);
    }
}

impl Drop for NodeAttempt {
    fn drop(&mut self) {
        let (node, owner) = (self.node.clone(), self.owner);
        let Some(Carried { sent, task, .. }) = self.sent.take() else {
            return node.note_settled(owner);
        };
        self.node.server.context.spawn(async move {
            clean_up(node.server.clone(), sent).await;
            node.note_settled(owner);
            drop(task);
        });
    }
}
