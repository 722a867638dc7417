//! One server as a node of a quorum: a try that never queues, and what is known of the node's memory.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{
    backend::{BackendError, Request},
    fencing::FencingToken,
    key::FENCE,
    layout::Layout,
    lease::Moment,
};
use redis::Value;

use super::{
    Duty, Server,
    attempt::{Args, Reply, Sent, clean_up},
    connection::{CallError, Connection, Incarnation, OPEN_PATIENCE},
    link::Link,
    script,
};
use crate::{
    clock::boot as clock, connect::ConnectError, engine, held::HeldHere, stats::Counters,
    sync::lock,
};

impl CallError {
    fn into_backend_error(self, server: &Server) -> BackendError {
        match self {
            Self::Refused(error) => error,
            Self::Broken(detail) | Self::NotNow(detail) | Self::Demoted(detail) => {
                server.note(detail.clone());
                BackendError::Unreachable(detail)
            }
        }
    }
}

impl Server {
    /// A connection that is up already, if there is one: a quorum does not wait for a handshake. Else the next one of
    /// the runtime that calls.
    async fn ready(self: &Arc<Self>) -> Result<(Arc<Link>, Arc<Connection>), BackendError> {
        let link = self.link();
        for link in [&link, self.home()] {
            if let Some(Ok(connection)) = link.connection().now_or_never() {
                return Ok((link.clone(), connection));
            }
        }
        self.connected().await
    }
}

/// What is known of a node's memory.
#[derive(Debug, Default)]
struct Memory {
    /// The connections over which the node was asked.
    asked: Vec<Weak<Connection>>,
    run_id: String,
    /// Whether it had never given a token when it was asked last.
    blank: bool,
    /// The newest token that it is known to have had.
    newest: u64,
    /// It has started then, and without the state that it may have had.
    lost_at: Option<Moment>,
    /// Its policy drops keys that are held.
    evicts: Option<String>,
}

/// One of several servers that answer for a lock together.
pub(crate) struct Node {
    server: Arc<Server>,
    allow_eviction: bool,
    memory: Mutex<Memory>,
    asking: tokio::sync::Mutex<()>,
    warned: AtomicBool,
}

impl Node {
    /// A node that nothing has been sent to.
    pub(crate) fn open(
        info: redis::ConnectionInfo,
        allow_eviction: bool,
        counters: Arc<Counters>,
        held: Arc<HeldHere>,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            server: Server::open(info, Layout::Native, counters, held)?,
            allow_eviction,
            memory: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            warned: AtomicBool::new(false),
        })
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Connects, and tells what is wrong with the node. It goes on connecting when this has failed.
    pub(crate) async fn connect(self: &Arc<Self>, patience: Duration) -> Result<(), ConnectError> {
        let started = clock::now();
        let home = self.server.home().clone();
        self.server.check(self.allow_eviction, patience).await?;
        let asking = async {
            let connection = home.connection().await?;
            self.ask(&connection).await
        };
        let detail = match clock::timeout_at(started + patience, asking).await {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => error.to_string(),
            None => "no answer".to_owned(),
        };
        Err(ConnectError::Unreachable {
            server: self.server.address(),
            waited: clock::now().since(started),
            detail,
        })
    }

    /// Asks a blank node once more whether it has given a token: then somebody else counts it, too.
    pub(crate) async fn ask_again(&self) -> Result<(), BackendError> {
        let (_, connection) = self.server.ready().await?;
        let seen = connection.incarnation(FENCE).await;
        let seen = seen.map_err(|error| error.into_backend_error(&self.server))?;
        let mut memory = lock(&self.memory);
        if let Some(fence) = seen.fence
            && seen.run_id == memory.run_id
        {
            memory.blank = false;
            memory.newest = fence;
            memory.lost_at = None;
        }
        Ok(())
    }

    fn has_asked(&self, connection: &Arc<Connection>) -> bool {
        let is_this = |asked: &Weak<Connection>| {
            std::ptr::eq(asked.as_ptr(), Arc::as_ptr(connection)) && asked.strong_count() > 0
        };
        lock(&self.memory).asked.iter().any(is_this)
    }

    /// Asks, once a connection, whether the node still has what it had: it cannot have restarted in between.
    async fn ask(self: &Arc<Self>, connection: &Arc<Connection>) -> Result<(), BackendError> {
        if self.has_asked(connection) {
            return Ok(());
        }
        // To its end, however long the caller waits: else a node that is slower than that would be asked forever.
        let (node, connection) = (self.clone(), connection.clone());
        let asking = engine::spawn(async move {
            let _asking = node.asking.lock().await;
            if node.has_asked(&connection) {
                return Ok(());
            }
            let newest = lock(&node.memory).newest;
            let before = clock::now();
            let seen = connection.incarnation(FENCE);
            match clock::timeout_at(before + OPEN_PATIENCE, seen).await {
                Some(Ok(seen)) => {
                    node.saw(&connection, seen, newest, before);
                    Ok(())
                }
                Some(Err(error)) => Err(error.into_backend_error(&node.server)),
                None => {
                    connection.health.mark_broken();
                    Err(BackendError::Unreachable("no answer".into()))
                }
            }
        });
        let asked = asking.await;
        asked.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))
    }

    /// Notes what the node said; `newest` was known of it before it was asked, at that moment.
    fn saw(&self, connection: &Arc<Connection>, seen: Incarnation, newest: u64, before: Moment) {
        let mut memory = lock(&self.memory);
        memory.asked.retain(|asked| asked.strong_count() > 0);
        memory.asked.push(Arc::downgrade(connection));
        let fence = seen.fence.unwrap_or_default();
        let same = memory.run_id == seen.run_id;
        if fence < newest || (!same && seen.fence.is_none()) {
            // It has lost what it had, or has never given a token: nobody can tell the one from the other.
            let since = if same { before } else { before - seen.uptime };
            memory.lost_at = memory.lost_at.max(Some(since));
            memory.newest = fence;
        } else {
            memory.newest = memory.newest.max(fence);
        }
        memory.blank = seen.fence.is_none();
        memory.run_id = seen.run_id;
        memory.evicts = seen
            .eviction
            .filter(|policy| policy != "noeviction" && !self.allow_eviction);
    }

    pub(crate) fn run_id(&self) -> String {
        lock(&self.memory).run_id.clone()
    }

    pub(crate) fn is_blank(&self) -> bool {
        lock(&self.memory).blank
    }

    /// The node has nothing that it could have lost.
    pub(crate) fn trust(&self) {
        lock(&self.memory).lost_at = None;
    }

    fn knows(&self, token: FencingToken) {
        let mut memory = lock(&self.memory);
        memory.newest = memory.newest.max(token.get());
    }

    /// Why the node's grants do not count at the moment, if they do not: it may have forgotten a lease of this length.
    fn why_not(&self, longest_lease: Duration) -> Option<String> {
        let memory = lock(&self.memory);
        if let Some(policy) = &memory.evicts {
            return Some(format!("it evicts keys (maxmemory-policy {policy})"));
        }
        let until = memory.lost_at? + longest_lease;
        let left = until.since(clock::now());
        (!left.is_zero()).then(|| {
            format!(
                "it has started without its state, and is not counted for {:.1} s more",
                left.as_secs_f64()
            )
        })
    }

    /// Asks for a lock, once. The attempt has to be kept or dropped, whatever the answer.
    pub(crate) async fn take(
        self: &Arc<Self>,
        request: &Request,
        longest_lease: Duration,
    ) -> (NodeAttempt, Result<Option<FencingToken>, BackendError>) {
        let mut attempt = NodeAttempt {
            node: self.clone(),
            sent: None,
        };
        let taken = attempt.take(request, longest_lease).await;
        (attempt, taken)
    }
}

/// What a node was sent for one acquisition.
struct Carried {
    sent: Sent,
    connection: Arc<Connection>,
    duty: Duty,
}

/// One acquisition on one node. Dropped before it was kept it gives back, in the background, what it may have got.
pub(crate) struct NodeAttempt {
    node: Arc<Node>,
    /// `None` while nothing is there to give back.
    sent: Option<Carried>,
}

impl NodeAttempt {
    async fn take(
        &mut self,
        request: &Request,
        longest_lease: Duration,
    ) -> Result<Option<FencingToken>, BackendError> {
        let server = &self.node.server;
        if server.is_refusing() {
            return Err(BackendError::ShutDown);
        }
        let (link, connection) = server.ready().await?;
        self.node.ask(&connection).await?;
        if let Some(reason) = self.node.why_not(longest_lease) {
            if !self.node.warned.swap(true, Ordering::AcqRel) {
                tracing::warn!(node = %server.address(), reason, "a node is not counted");
            }
            server.note(reason.clone());
            return Err(BackendError::Unreachable(reason));
        }
        self.node.warned.store(false, Ordering::Release);
        let request = Request {
            wait: Duration::ZERO,
            ..request.clone()
        };
        let args = Arc::new(Args::new(server, &request, link.inbox.clone(), false));
        args.carry(&connection);
        let sent = self.sent.insert(Carried {
            sent: Sent {
                link,
                args: args.clone(),
            },
            connection,
            duty: server.begin_duty(),
        });
        match args.acquire(&sent.connection).await {
            Ok(Reply::Granted(grant)) => {
                self.node.knows(grant.token);
                Ok(Some(grant.token))
            }
            Ok(Reply::Held(standing)) => {
                let token = standing.sole().grant.token;
                self.node.knows(token);
                Ok(Some(token))
            }
            Ok(Reply::Busy) => {
                // Asked once only: nothing was changed, and nothing is under way.
                self.sent = None;
                Ok(None)
            }
            Ok(Reply::Queued(_) | Reply::Late) => {
                sent.connection.health.mark_demoted();
                let detail = "the request came too late".to_owned();
                Err(BackendError::Unreachable(detail))
            }
            Err(error) => {
                let error = error.into_backend_error(server);
                if !matches!(error, BackendError::Unreachable(_)) {
                    self.sent = None; // refused: nothing was changed
                }
                Err(error)
            }
        }
    }

    /// Lets the node know the token that the quorum agreed on; false if the grant has ended there.
    pub(crate) async fn adopt(&mut self, token: FencingToken) -> Result<bool, BackendError> {
        let Some(Carried {
            sent, connection, ..
        }) = &self.sent
        else {
            return Ok(false);
        };
        let (owner, number) = (sent.args.owner.to_string(), token.to_string());
        let keys = [sent.args.names.grant(), FENCE];
        // Over the connection of the request, so that a giving back comes after both.
        let args = [owner.as_str(), &number];
        match connection.run(&script::ADOPT, &keys, &args).await {
            Ok((Value::Int(1), _)) => {
                self.node.knows(token);
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) => Err(error.into_backend_error(&self.node.server)),
        }
    }

    /// What was taken belongs to a hold from now on, which releases it by its token.
    pub(crate) fn keep(mut self) {
        self.sent = None;
    }
}

impl Drop for NodeAttempt {
    fn drop(&mut self) {
        if let Some(Carried { sent, duty, .. }) = self.sent.take() {
            let server = self.node.server.clone();
            engine::spawn(async move {
                clean_up(server, sent).await;
                drop(duty);
            });
        }
    }
}
