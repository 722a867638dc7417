//! Locks on one Redis server, 6.2 or later, or on what speaks its protocol.
//!
//! All promises hold on a server that keeps its state. A server that loses it (killed without persistence, evicting,
//! a promoted replica that lacks the newest write) can admit a second holder until the first one is told, at its next
//! renewal or check; fencing tokens rise all the same.

pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod transport;

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{
        Attempt, Backend, BackendError, BoxFuture, Holder, MultiAnswer, Released, Renewed, Request,
        Status, ToRenew,
    },
    fencing::FencingToken,
    key::LockName,
    layout::Layout,
    lease::{CLAIM, Moment},
    options::Strategy,
};
use once_cell::sync::{Lazy, OnceCell};
use redis::{ProtocolVersion, Value};
use tokio::{
    runtime::{self, Handle},
    sync::Notify,
};

use crate::{
    backend::redis::{
        protocol::{
            layout::{Names, Scripts},
            request::{LATE_SLACK, millis, not_understood},
            script::Script,
        },
        queue::{
            attempt::RedisAttempt, cleanup::RETRY_PAUSE, cohorts::Cohorts, multi::acquire_multi,
            notify::NotifiedAttempt, renew::Extend, session::Session,
        },
        transport::{
            connection::{CallError, Connection},
            outage::Outages,
            preflight::{Failure, check},
            pulse::{Pulse, Readiness},
        },
    },
    background::{
        self,
        clock::boot as clock,
        latch::{Latch, UnderWay},
        sync::lock,
    },
    client::url::ConnectError,
    events::{Counters, count},
};

/// The time a pushed grant stands unconfirmed, as the scripts take it.
pub(crate) fn claim_ms() -> &'static str {
    static CLAIM_MS: Lazy<String> = Lazy::new(|| millis(CLAIM));
    &CLAIM_MS
}

/// An argument of a script.
pub(crate) enum Arg<'a> {
    Text(&'a str),
    /// The floor of the connection that carries the command.
    Floor,
    /// A local moment, by the server's clock.
    At(Moment),
    /// How long it is to a local moment, in ms.
    Until(Moment),
    /// Leases begin again with this command, which may not come late: it would shorten those of others.
    Restart,
}

impl Arg<'_> {
    pub(crate) fn over(&self, connection: &Connection) -> Cow<'_, str> {
        match self {
            Self::Text(text) => (*text).into(),
            Self::Floor => connection.floor.clone().into(),
            Self::At(moment) => connection.server_micros(*moment).to_string().into(),
            Self::Until(moment) => millis(moment.since(clock::now())).into(),
            // A connection that is broken is closed on the server before the next one is used, where that is permitted.
            Self::Restart if connection.may_kill => "restart|".into(),
            Self::Restart => {
                let end = clock::now() + LATE_SLACK;
                format!("restart|{}", connection.server_micros(end)).into()
            }
        }
    }
}

/// A script's answer.
pub(crate) struct Answered {
    pub(crate) value: Value,
    /// When the request that it answers was sent.
    pub(crate) sent: Moment,
    /// Whether an earlier request got no answer, and may have been carried out.
    pub(crate) again: bool,
}

/// How to reach the server.
pub(crate) struct RedisConfig {
    pub(crate) info: redis::ConnectionInfo,
    pub(crate) layout: Layout,
    pub(crate) allow_eviction: bool,
    pub(crate) patience: Duration,
}

/// One server, as all sessions see it.
pub(crate) struct Server {
    client: redis::Client,
    layout: Layout,
    scripts: &'static Scripts,
    counters: Arc<Counters>,
    cohorts: Cohorts,
    home: OnceCell<Arc<Session>>,
    /// By the runtime they run on; `None` where a session has ended, for the runtime is ending or cannot carry one.
    sessions: Mutex<HashMap<runtime::Id, Option<Arc<Session>>>>,
    outages: Arc<Outages>,
    pulse: Pulse,
    readiness: Arc<Readiness>,
    shutting_down: AtomicBool,
    refused: Notify,
    closed: AtomicBool,
    /// The acquisitions that are not settled, and what cleans up after those that were given up.
    unsettled: Arc<Latch>,
    /// The releases in the background.
    releases: Arc<Latch>,
    /// When the last of the leases ends that are released there.
    released_by: Mutex<Option<Moment>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

/// Something that runs in the background; shutting down waits for it.
pub(crate) type TrackedTask = UnderWay;

impl Server {
    /// A server that nothing has been sent to.
    pub(crate) fn open(
        info: redis::ConnectionInfo,
        layout: Layout,
        counters: Arc<Counters>,
    ) -> Result<Arc<Self>, ConnectError> {
        #[cfg(feature = "tls")]
        crate::client::url::install_tls();
        // Grants are pushed on the connection that carries the commands.
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(settings);
        let info = crate::client::url::with_tcp_settings(info);
        let client = redis::Client::open(info).map_err(|error| ConnectError::InvalidUrl {
            detail: error.category().to_owned(),
        })?;
        let address = client.get_connection_info().addr().to_string();
        Ok(Arc::new(Self {
            outages: Outages::new(address),
            client,
            layout,
            scripts: Scripts::of(layout),
            counters,
            cohorts: Cohorts::default(),
            home: OnceCell::new(),
            sessions: Mutex::default(),
            pulse: Pulse::default(),
            readiness: Arc::default(),
            shutting_down: AtomicBool::new(false),
            refused: Notify::new(),
            closed: AtomicBool::new(false),
            unsettled: Arc::default(),
            releases: Arc::default(),
            released_by: Mutex::default(),
        }))
    }

    pub(crate) fn names(&self, name: &LockName) -> Names {
        Names::new(self.layout, name.clone())
    }

    /// The key of a lock, as its callers write it and as logs show it.
    pub(crate) fn key<'a>(&self, name: &'a LockName) -> &'a str {
        self.layout.key(name)
    }

    pub(crate) fn address(&self) -> &str {
        self.outages.address()
    }

    /// Connects once, to tell what is wrong with the server.
    pub(crate) async fn check(
        self: &Arc<Self>,
        allow_eviction: bool,
        patience: Duration,
    ) -> Result<(), ConnectError> {
        let started = clock::now();
        let checked = background::spawn(check(self.clone(), allow_eviction, patience));
        let failure = match clock::timeout_at(started + patience, checked).await {
            Some(Ok(Ok(()))) => return Ok(()),
            Some(Ok(Err(failure))) => failure,
            Some(Err(panic)) => Failure::Refused(panic.to_string()),
            None => Failure::Unreachable("no answer".into()),
        };
        Err(failure.at(self.address().to_owned(), clock::now().since(started)))
    }

    /// From now on nobody waits here, and nobody begins to.
    pub(crate) fn begin_shutdown(&self) {
        self.shutting_down.store(true, Ordering::Release);
        self.refused.notify_waiters();
        for session in lock(&self.sessions)
            .values()
            .flatten()
            .chain(self.home.get())
        {
            session.dismiss_waiters();
        }
    }

    /// The session of the runtime that calls; the home session outside any, and where the runtime could not carry one: it has
    /// ended, or drives no sockets.
    pub(crate) fn session(self: &Arc<Self>) -> Arc<Session> {
        let runtime = Handle::try_current().ok().filter(|runtime| {
            // The engine's own runtime is where the home session lives; and none is made after the end.
            runtime.id() != background::handle().id() && !self.closed.load(Ordering::Acquire)
        });
        let session = runtime.and_then(|runtime| {
            let (session, new) = match lock(&self.sessions).entry(runtime.id()) {
                Entry::Occupied(entry) => (entry.get().clone()?, false),
                Entry::Vacant(entry) => {
                    let session = Session::new();
                    entry.insert(Some(session.clone()));
                    (session, true)
                }
            };
            // Outside the mutex: on a runtime that has ended the session ends here and now, and retires.
            if new {
                session.run(self, &runtime);
            }
            (!session.has_ended()).then_some(session)
        });
        session.unwrap_or_else(|| self.home().clone())
    }

    /// A connection of the session of the runtime that calls, as soon as there is one.
    pub(crate) async fn connected(
        self: &Arc<Self>,
    ) -> Result<(Arc<Session>, Arc<Connection>), BackendError> {
        let session = self.session();
        if let Ok(connection) = session.connection().await {
            return Ok((session, connection));
        }
        let home = self.home().clone();
        let connection = home.connection().await?;
        Ok((home, connection))
    }

    /// The engine's own session.
    pub(crate) fn home(self: &Arc<Self>) -> &Arc<Session> {
        self.home.get_or_init(|| {
            let home = Session::new();
            home.run(self, background::handle());
            home
        })
    }

    /// Uses a session no more.
    pub(crate) fn retire(&self, session: &Arc<Session>) {
        for other in lock(&self.sessions).values_mut() {
            if other
                .as_ref()
                .is_some_and(|other| Arc::ptr_eq(other, session))
            {
                *other = None;
            }
        }
    }

    /// Notes an error, which explains what fails soon after.
    pub(crate) fn note(&self, error: String) {
        self.outages.note(error);
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.outages.last_error()
    }

    /// Whether the client has given up all connections.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Acquire)
    }

    /// ExitPolicy when nobody waits here any more, and nobody begins to.
    pub(crate) async fn until_shutdown(&self) {
        let mut refused = pin!(self.refused.notified());
        refused.as_mut().enable();
        if !self.is_shutting_down() {
            refused.await;
        }
    }

    /// An acquisition, or what cleans up after it. What begins during the shutdown belongs to what was held.
    pub(crate) fn track_acquisition(&self) -> TrackedTask {
        if self.is_shutting_down() {
            self.track_release(clock::now() + CLAIM)
        } else {
            self.track_cleanup()
        }
    }

    /// What cleans up after a caller that does not come back. Shutting down waits for it as for what waits.
    pub(crate) fn track_cleanup(&self) -> TrackedTask {
        self.unsettled.begin()
    }

    /// A release in the background, of a lease that ends by itself then.
    pub(crate) fn track_release(&self, lease_ends: Moment) -> TrackedTask {
        let mut released_by = lock(&self.released_by);
        *released_by = (*released_by).max(Some(lease_ends));
        self.releases.begin()
    }

    /// Runs a script on the caller's session, over as many connections as it takes; the caller bounds it.
    pub(crate) async fn run(
        self: &Arc<Self>,
        script: &Script,
        keys: &[&str],
        args: &[Arg<'_>],
    ) -> Result<Answered, BackendError> {
        let mut again = false;
        loop {
            let (_, connection) = self.connected().await?;
            let args: Vec<_> = args.iter().map(|arg| arg.over(&connection)).collect();
            let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
            match connection.run(script, keys, &args).await {
                Ok((value, sent)) => return Ok(Answered { value, sent, again }),
                Err(CallError::Refused(error)) => return Err(error),
                Err(CallError::Broken(detail)) => {
                    again = true;
                    self.note(detail);
                }
                Err(CallError::NotReady(detail) | CallError::Demoted(detail)) => {
                    self.note(detail);
                    clock::sleep_until(clock::now() + RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Gives the grant of this token to the next in the queue, or to nobody.
    pub(crate) async fn release_grant(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> Result<Released, BackendError> {
        let names = self.names(name);
        let keys = names.keys();
        let released = match retain_until.filter(|until| *until > clock::now()) {
            None => {
                let grant = format!("{token}|");
                let args = [Arg::Text(&grant), Arg::Floor, Arg::Text(claim_ms())];
                self.run(self.scripts.release, &keys, &args).await
            }
            Some(until) => {
                let token = token.to_string();
                let args = [
                    Arg::Text(&token),
                    Arg::At(until),
                    Arg::Until(until),
                    Arg::Floor,
                    Arg::Text(claim_ms()),
                ];
                self.run(self.scripts.retain, &keys, &args).await
            }
        };
        let answered = match released {
            // Something else is there by now.
            Err(BackendError::WrongLayout) => return Ok(Released::NotHeld),
            released => released?,
        };
        Ok(match answered.value {
            Value::Int(1) => Released::Released,
            // The first request was carried out, and its answer lost.
            _ if answered.again => Released::Released,
            _ => Released::NotHeld,
        })
    }

    pub(crate) async fn status(self: &Arc<Self>, name: &LockName) -> Result<Status, BackendError> {
        let names = self.names(name);
        let keys = [names.grant(), names.companion()];
        let status = self.run(self.scripts.status, &keys, &[]).await?.value;
        type Seen = (usize, Option<u64>, Option<String>, i64, usize);
        let (queued, token, owner, left, others): Seen =
            redis::from_redis_value(status).map_err(|error| not_understood(&error))?;
        let owner = owner.and_then(|owner| owner.parse().ok());
        // How far a cohort has come is known to its process alone.
        let inside = token.and_then(|token| self.cohorts.seen(name, token));
        let (token, owner, others) = match inside {
            Some((turn, others)) => (Some(turn.token), Some(turn.owner), others),
            None => (token, owner, others),
        };
        Ok(Status {
            holder: owner.map(|owner| Holder {
                owner,
                token: token.map(FencingToken::new),
                remaining: u64::try_from(left).ok().map(Duration::from_millis),
            }),
            waiters: queued + others,
        })
    }

    /// ExitPolicy when nothing is left of the acquisitions that were given up.
    pub(crate) async fn cleaned_up(&self) {
        self.unsettled.ended().await;
    }

    /// Waits for the background releases, at most until the last of their leases ends and not beyond `until`. Then
    /// closes all connections.
    pub(crate) async fn close(&self, until: Moment) {
        let released_by = lock(&self.released_by).unwrap_or(until);
        clock::timeout_at(released_by.min(until), self.releases.ended()).await;
        self.end();
    }

    /// Closes all connections when nothing runs in the background any more.
    pub(crate) async fn close_behind(&self) {
        self.cleaned_up().await;
        self.releases.ended().await;
        self.end();
    }

    fn end(&self) {
        self.closed.store(true, Ordering::Release);
        let sessions: Vec<_> = lock(&self.sessions)
            .drain()
            .filter_map(|(_, session)| session)
            .collect();
        for session in sessions.iter().chain(self.home.get()) {
            session.end();
        }
    }

    /// Releases in the background, tried again until the lease has ended by itself.
    async fn release_until(
        self: Arc<Self>,
        name: LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
    ) {
        let claim_ends = clock::now() + CLAIM;
        let until = lease_ends.map_or(claim_ends, |ends| ends.max(claim_ends));
        let released = clock::timeout_at(until, self.release(&name, token, retain_until)).await;
        self.cohorts.forget(&name, token);
        let Some(lease_ends) = lease_ends else {
            return; // lost before: that is counted
        };
        match released {
            Some(Ok(Released::Released)) => {
                count(&self.counters.released);
                tracing::debug!(server = %self.address(), key = %self.key(&name), %token, "released in the background");
            }
            // A first request was carried out and its answer not read.
            Some(Ok(Released::NotHeld)) if clock::now() < lease_ends => {
                count(&self.counters.released);
            }
            Some(Ok(Released::NotHeld)) => {}
            Some(Err(error)) => {
                count(&self.counters.release_failed);
                tracing::warn!(server = %self.address(), key = %self.key(&name), %token, %error, "release failed, the lease ends by itself");
            }
            None => {
                count(&self.counters.release_failed);
                tracing::warn!(server = %self.address(), key = %self.key(&name), %token, "release not answered, the lease has ended by itself");
            }
        }
    }

    /// The same in the background.
    fn release_behind(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
    ) {
        let task = self.track_release(lease_ends.unwrap_or_else(clock::now));
        let releasing = self
            .clone()
            .release_until(name.clone(), token, retain_until, lease_ends);
        background::spawn(async move {
            releasing.await;
            drop(task);
        });
    }
}

/// Locks on one Redis server.
#[derive(Debug)]
pub(crate) struct RedisBackend {
    server: Arc<Server>,
}

impl RedisBackend {
    /// Connects once, to tell at the start what is wrong with the server.
    pub(crate) async fn connect(
        config: RedisConfig,
        counters: Arc<Counters>,
    ) -> Result<Self, ConnectError> {
        let (allow_eviction, patience) = (config.allow_eviction, config.patience);
        let server = Server::open(config.info, config.layout, counters)?;
        server.check(allow_eviction, patience).await?;
        server.home();
        Ok(Self { server })
    }
}

impl Backend for RedisBackend {
    fn now(&self) -> Moment {
        clock::now()
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        clock::sleep_until(deadline)
    }

    fn maintains_leases(&self) -> bool {
        false
    }

    fn attempt(&self, request: Request) -> Box<dyn Attempt> {
        let server = self.server.clone();
        if request.strategy == Strategy::Notify && !request.wait.is_zero() {
            Box::new(NotifiedAttempt::new(server, request))
        } else {
            Box::new(RedisAttempt::new(server, request))
        }
    }

    fn acquire_multi(
        &self,
        requests: Vec<Request>,
    ) -> BoxFuture<'_, Result<MultiAnswer, BackendError>> {
        Box::pin(acquire_multi(self.server.clone(), requests))
    }

    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        Box::pin(self.server.release(name, token, retain_until))
    }

    fn release_in_background(
        &self,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
    ) {
        self.server
            .release_behind(name, token, retain_until, lease_ends);
    }

    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.server.renew(name, token, Extend::To(lease)))
    }

    fn restart<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.server.renew(name, token, Extend::Restart(lease)))
    }

    fn check<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        Box::pin(self.server.renew(name, token, Extend::To(Duration::ZERO)))
    }

    fn renewal_batch(&self) -> usize {
        queue::renew::BATCH_LIMIT
    }

    fn renew_all<'a>(
        &'a self,
        grants: &'a [ToRenew<'a>],
    ) -> BoxFuture<'a, Vec<Result<Renewed, BackendError>>> {
        Box::pin(self.server.renew_all(grants))
    }

    fn last_error(&self) -> Option<String> {
        self.server.last_error()
    }

    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>> {
        Box::pin(self.server.status(name))
    }

    fn begin_shutdown(&self) {
        self.server.begin_shutdown();
    }

    fn is_answering(&self, within: Duration) -> BoxFuture<'_, bool> {
        Box::pin(self.server.is_answering(within))
    }

    fn cleaned_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.server.cleaned_up())
    }

    fn close(&self, until: Moment) -> BoxFuture<'_, ()> {
        Box::pin(self.server.close(until))
    }
}

impl Drop for RedisBackend {
    fn drop(&mut self) {
        // What still runs in the background keeps the server, and with it the home session, until it is done.
        let server = self.server.clone();
        background::spawn(async move { server.close_behind().await });
    }
}
