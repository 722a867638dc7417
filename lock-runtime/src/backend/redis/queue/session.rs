//! A session: one session_id, its channel, and the connection behind them, made again whenever it breaks.
//!
//! A session lives on the runtime of those who call, so that a command costs no hop between threads. The engine has one
//! of its own, the home session, for everything that has to outlive a runtime.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::BackendError,
    key::{FENCE, LockName},
    lease::Moment,
    owner::OwnerId,
};
use redis::{ParsingError, Value};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
};
use uuid::Uuid;

use crate::{
    backend::redis::{
        Server,
        protocol::{
            grant::{self, GrantSnapshot, Message},
            request::{AcquireRequest, ends},
            script,
        },
        queue::{cleanup::revoke, notify::Notified, waiters::Waiters},
        transport::{
            connection::{Connection, Identity, OPEN_PATIENCE, Parking, Pushed},
            outage::SessionPresence,
        },
    },
    background::{self, clock::boot as clock, sync::lock},
};

/// While somebody waits here, the keys are looked at this often.
const HEARTBEAT: Duration = Duration::from_millis(200);
/// A connection that leaves commands unanswered for so long is given up.
const SILENCE: Duration = Duration::from_secs(2);
/// Between two tries to connect: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// After a server that leads no more, a connection counts when it has lasted for so long.
const TRIAL: Duration = Duration::from_secs(1);
/// How many locks one look covers.
const PROBE_BATCH: usize = 100;
/// So much time passes between two looks of a process, times the locks that it waits for. A look at one lock costs a server up to 7 µs, a
/// twentieth of this.
const PROBE_SHARE: Duration = Duration::from_micros(150);
/// So many characters of a message that is not understood are logged.
const LOGGED_AT_MOST: usize = 100;
/// A lock whose lease ends is looked at so much later, when the server has seen the end, too.
const LEASE_ENDED: Duration = Duration::from_millis(1);

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Up(Arc<Connection>),
    /// Its runtime has ended, or the client was shut down.
    Ended,
}

pub(crate) struct Session {
    /// Where callers are told of grants. A secret of this process and of the scripts.
    pub(crate) session_id: Arc<str>,
    /// The channel of the session_id.
    channel: String,
    /// Whether somebody was warned of messages that are not signed.
    forged: AtomicBool,
    state: watch::Sender<State>,
    runtime: OnceLock<Handle>,
    /// Those who queue.
    pub(crate) waiters: Waiters,
    /// Requests that callers have sent by themselves.
    pub(crate) unanswered: Unanswered,
    /// Those who wait without a queue.
    pub(crate) notified: Notified,
    /// Where the heartbeat sleeps.
    parking: Arc<Parking>,
    /// There is a lock to look at earlier than the heartbeat would.
    earlier: Notify,
}

/// Requests that callers have sent by themselves, and whose answers they have not read.
#[derive(Default)]
pub(crate) struct Unanswered(Mutex<HashMap<OwnerId, Arc<AcquireRequest>>>);

impl Unanswered {
    pub(crate) fn insert(&self, args: &Arc<AcquireRequest>) {
        lock(&self.0).insert(args.owner, args.clone());
    }

    pub(crate) fn remove(&self, owner: OwnerId) {
        lock(&self.0).remove(&owner);
    }

    /// Those that were sent a claim ago. They are not kept here any longer.
    pub(crate) fn overdue(&self, now: Moment) -> Vec<Arc<AcquireRequest>> {
        let mut unanswered = lock(&self.0);
        let overdue = unanswered.extract_if(|_, args| args.is_overdue(now));
        overdue.map(|(_, args)| args).collect()
    }

    /// Whether this is the grant of one owner, which has not read the answer to its own request: that one tells it.
    pub(crate) fn has(&self, owners: &[OwnerId]) -> bool {
        matches!(owners, [owner] if lock(&self.0).contains_key(owner))
    }

    fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("channel", &self.channel)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session that does not run yet.
    pub(crate) fn new() -> Arc<Self> {
        let session_id = Uuid::new_v4().simple().to_string();
        Arc::new(Self {
            channel: grant::channel(&session_id),
            forged: AtomicBool::new(false),
            session_id: session_id.into(),
            state: watch::Sender::new(State::Connecting),
            runtime: OnceLock::new(),
            waiters: Waiters::default(),
            unanswered: Unanswered::default(),
            earlier: Notify::new(),
            notified: Notified::default(),
            parking: Arc::default(),
        })
    }

    /// Lets the session run on `runtime`. On one that has ended it ends at once.
    pub(crate) fn run(self: &Arc<Self>, server: &Arc<Server>, runtime: &Handle) {
        self.runtime.get_or_init(|| runtime.clone());
        let ending = Ending {
            session: self.clone(),
            server: Arc::downgrade(server),
            presence: server.outages.session(),
        };
        runtime.spawn(ending.supervise());
        background::spawn(beat(
            Arc::downgrade(self),
            self.parking.clone(),
            Arc::downgrade(server),
        ));
    }

    /// Lets something run where the session does; it ends with that runtime.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.runtime.get().unwrap_or_else(|| background::handle());
        runtime.spawn(future);
    }

    /// The connection, if there is one right now.
    pub(crate) fn connected(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            State::Up(connection) if !connection.health.is_broken() => Some(connection.clone()),
            _ => None,
        }
    }

    /// The connection, as soon as there is one.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        if let Some(connection) = self.connected() {
            return Ok(connection);
        }
        let mut state = self.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                State::Up(connection) if !connection.health.is_broken() => {
                    return Ok(connection.clone());
                }
                State::Ended => return Err(BackendError::ShutDown),
                _ => {}
            }
            if state.changed().await.is_err() {
                return Err(BackendError::ShutDown);
            }
        }
    }

    /// ExitPolicy when another connection has come after this one; never, if none does.
    pub(crate) async fn succeeds(&self, previous: &Identity) {
        let is_new = |state: &State| match state {
            State::Up(connection) => connection.identity != *previous,
            State::Connecting | State::Ended => false,
        };
        if self.state.subscribe().wait_for(is_new).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(&*self.state.borrow(), State::Ended)
    }

    /// ExitPolicy the session: nobody can connect or wait any more.
    pub(crate) fn end(&self) {
        let last = self.state.send_replace(State::Ended);
        if let State::Up(connection) = last {
            connection.health.mark_broken();
        }
        self.waiters.clear();
        self.parking.leave();
    }

    /// ExitPolicy the waiting of all who wait here.
    pub(crate) fn dismiss_waiters(&self) {
        self.notified.wake_all();
        self.waiters.clear();
    }

    /// There is something to watch.
    pub(crate) fn watch(&self) {
        self.parking.watch();
    }

    /// A push to the session_id's channel tells of a grant or of a lock that is free; to another channel, that the lock of that
    /// channel is free.
    fn pushed(self: &Arc<Self>, server: &Arc<Server>, push: &Pushed) {
        if push.channel != self.channel {
            return self.notified.wake(&push.channel);
        }
        match Message::read(&push.payload, &self.session_id, push.after) {
            Some(Message::Free(name)) => self.notified.wake(name),
            Some(Message::Granted(name, grant)) => server.take_up(self, &name, &grant),
            None => {
                let payload: String = push.payload.chars().take(LOGGED_AT_MOST).collect();
                // Whoever sends such messages may send many.
                if self.forged.swap(true, Ordering::AcqRel) {
                    tracing::debug!(server = %server.address(), ?payload, "ignored a message that no lock script has sent");
                } else {
                    tracing::warn!(server = %server.address(), ?payload, "ignored a message that no lock script has sent, and others like it");
                }
            }
        }
    }

    /// Notes the places of callers, and when their lock is looked at: at the end of the holder's lease, if that is near.
    pub(crate) fn queued(
        &self,
        name: &LockName,
        places: &[(&AcquireRequest, u64)],
        holder_ends: Moment,
    ) {
        self.waiters.queued(name, places);
        self.probe_at(name, holder_ends + LEASE_ENDED);
    }

    /// The lock is looked at then, or before.
    fn probe_at(&self, name: &LockName, at: Moment) {
        let at = at.min(clock::now() + HEARTBEAT);
        if self.waiters.probe_at(name, at) {
            self.earlier.notify_one();
        }
    }

    /// Whether nobody waits here, and no command is under way.
    fn is_idle(&self) -> bool {
        let quiet = match &*self.state.borrow() {
            State::Up(connection) => connection.health.is_idle(),
            State::Connecting | State::Ended => false,
        };
        quiet && self.waiters.is_empty() && self.unanswered.is_empty()
    }

    /// Sends the requests of all who were queued again, with their old places: over a new connection, or where the
    /// server has lost the queue of this lock.
    pub(crate) fn requeue(self: &Arc<Self>, server: &Arc<Server>, only: Option<&LockName>) {
        for name in self.waiters.requeue(only) {
            self.ask(server, &name);
        }
    }

    /// Frees what expired, finds grants whose push was lost, and queues again where the server has lost a queue.
    async fn look(
        self: Arc<Self>,
        server: Arc<Server>,
        connection: Arc<Connection>,
        awaited: Vec<Arc<AcquireRequest>>,
        next: Duration,
    ) {
        let members: Vec<String> = awaited.iter().map(|args| args.member()).collect();
        let next = next.as_millis().to_string();
        let mut keys = vec![FENCE];
        let mut args = vec![
            &*self.session_id,
            connection.floor.as_str(),
            crate::backend::redis::claim_ms(),
            &next,
        ];
        for (awaited, member) in awaited.iter().zip(&members) {
            keys.extend([awaited.names.grant(), awaited.names.companion()]);
            keys.extend(awaited.names.claim());
            args.push(member);
        }
        let (found, sent) = match connection.run(&script::PROBE, &keys, &args).await {
            Ok((Value::Array(found), sent)) => (found, sent),
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(server = %server.address(), %error, "a look at the locks that are waited for failed");
                return server.note(error.to_string());
            }
        };
        for found in found {
            if let Err(error) = self.found(&server, &awaited, found, sent) {
                tracing::warn!(server = %server.address(), %error, "not understood: what a look found");
            }
        }
    }

    /// A reply to somebody else's request describes a grant of this session_id. Where its only owner has not read the answer to its
    /// own request, that answer may be the grant itself: it is not offered a second time.
    pub(crate) fn described(
        self: &Arc<Self>,
        server: &Arc<Server>,
        name: &LockName,
        grant: &GrantSnapshot,
    ) {
        if !self.unanswered.has(&grant.owners) {
            server.take_up(self, name, grant);
        }
    }

    /// What a look that was sent then found of one lock.
    fn found(
        self: &Arc<Self>,
        server: &Arc<Server>,
        awaited: &[Arc<AcquireRequest>],
        found: Value,
        asked: Moment,
    ) -> Result<(), ParsingError> {
        let fields: Vec<Value> = redis::from_redis_value(found)?;
        let mut fields = fields.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let (what, number): (String, usize) = (
            redis::from_redis_value(next())?,
            redis::from_redis_value(next())?,
        );
        let Some(args) = awaited.get(number.wrapping_sub(1)) else {
            return Ok(());
        };
        let name = &args.names.lock;
        match what.as_str() {
            // A grant of this session_id: its push is late, or was lost.
            "held" => {
                let (grant, left): (String, u64) = (
                    redis::from_redis_value(next())?,
                    redis::from_redis_value(next())?,
                );
                if let Some(grant) = GrantSnapshot::parse(&grant, left, asked) {
                    self.described(server, name, &grant);
                }
            }
            "ends" => self.probe_at(
                name,
                ends(redis::from_redis_value(next())?, asked) + LEASE_ENDED,
            ),
            // The server knows this caller no longer.
            _ => match server.cohorts.lost_member(name, args.owner, asked) {
                Some(first) => {
                    tracing::debug!(server = %server.address(), key = %server.key(name), "the server has lost a grant");
                    server.lose_cohort(name, first);
                }
                None => {
                    tracing::debug!(server = %server.address(), key = %server.key(name), "the server has lost the queue, queueing again");
                    self.requeue(server, Some(name));
                }
            },
        }
        Ok(())
    }
}

/// ExitPolicy a session when its supervisor ends, be it by the end of the runtime that it runs on.
struct Ending {
    session: Arc<Session>,
    server: Weak<Server>,
    presence: SessionPresence,
}

impl Ending {
    /// Connects, again and again, until the session has ended.
    async fn supervise(mut self) {
        let mut previous: Option<Identity> = None;
        let mut demoted = false;
        let mut backoff = BACKOFF.0;
        let mut state = self.session.state.subscribe();
        loop {
            let Some(server) = self.server.upgrade() else {
                return;
            };
            let (weak, of) = (Arc::downgrade(&self.session), self.server.clone());
            let on_push = move |push| {
                if let (Some(session), Some(server)) = (weak.upgrade(), of.upgrade()) {
                    session.pushed(&server, &push);
                }
            };
            let opened = Connection::open(
                &server,
                &self.session.channel,
                previous.clone(),
                self.session.parking.clone(),
                OPEN_PATIENCE,
                on_push,
            )
            .await;
            match opened {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    tracing::debug!(server = %server.address(), channel = self.session.channel, "connected");
                    backoff = BACKOFF.0;
                    previous = Some(connection.identity.clone());
                    let up = self.session.state.send_if_modified(|state| {
                        let connecting = matches!(state, State::Connecting);
                        if connecting {
                            *state = State::Up(connection.clone());
                        }
                        connecting
                    });
                    if !up {
                        return;
                    }
                    self.session.requeue(&server, None);
                    drop(server);
                    // A replica can be connected to: that ends no outage that a replica has begun.
                    let trial = if demoted { TRIAL } else { Duration::ZERO };
                    let is_trial_over = clock::sleep_until(clock::now() + trial);
                    tokio::select! {
                        biased;
                        () = connection.health.until_broken() => {}
                        () = is_trial_over => {
                            self.presence.connected();
                            connection.health.until_broken().await;
                        }
                    }
                    demoted = connection.health.is_demoted();
                    if let Some(error) = connection.health.lost() {
                        self.presence.disconnected(error);
                    }
                    drop(connection);
                    tracing::debug!(channel = self.session.channel, "connection lost");
                    self.session.state.send_if_modified(|state| {
                        let up = matches!(state, State::Up(_));
                        if up {
                            *state = State::Connecting;
                        }
                        up
                    });
                    if demoted {
                        clock::sleep_until(clock::now() + BACKOFF.1).await;
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    tracing::debug!(server = %server.address(), %error, "cannot connect to the lock server");
                    self.presence.disconnected(&error);
                    server.outages.note(error);
                    drop(server);
                    let pause = clock::sleep_until(clock::now() + backoff);
                    backoff = (backoff * 2).min(BACKOFF.1);
                    tokio::select! {
                        () = pause => {}
                        _ = state.wait_for(|state| matches!(state, State::Ended)) => {}
                    }
                }
            }
            if self.session.has_ended() {
                return;
            }
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.session.end();
        if let Some(server) = self.server.upgrade() {
            server.retire(&self.session);
        }
    }
}

/// The heartbeat of a session, on the engine's thread: it looks while somebody waits, passes on what nobody takes, and notices
/// silence.
async fn beat(session: Weak<Session>, parking: Arc<Parking>, server: Weak<Server>) {
    let mut next_beat = clock::now();
    loop {
        let wake = {
            let (Some(session), Some(server)) = (session.upgrade(), server.upgrade()) else {
                return;
            };
            let now = clock::now();
            let state = session.state.borrow().clone();
            if let State::Ended = state {
                return;
            }
            if next_beat <= now {
                next_beat = now + HEARTBEAT;
                server.tend_cohorts(&session, now, next_beat);
                revoke(&server, &session, now);
                if let State::Up(connection) = &state {
                    check_silence(connection, now);
                }
            }
            let mut wake = next_beat;
            if let State::Up(connection) = state {
                // Looks at many locks are spread over a longer time.
                let locks = u32::try_from(session.waiters.locks()).unwrap_or(u32::MAX);
                let period = HEARTBEAT.max(PROBE_SHARE.saturating_mul(locks));
                let due = session.waiters.due(now, now + period, PROBE_BATCH);
                let is_full = due.len() == PROBE_BATCH;
                if !due.is_empty() {
                    background::spawn(session.clone().look(
                        server.clone(),
                        connection,
                        due,
                        period,
                    ));
                }
                if is_full {
                    wake = now + PROBE_SHARE * PROBE_BATCH as u32;
                } else if let Some(probe) = session.waiters.next_probe() {
                    wake = wake.min(probe);
                }
            }
            wake
        };
        parking
            .park(|| session.upgrade().is_some_and(|session| session.is_idle()))
            .await;
        let Some(session) = session.upgrade() else {
            return;
        };
        tokio::select! {
            () = clock::sleep_until(wake) => {}
            () = session.earlier.notified() => {}
        }
    }
}

/// Gives up a connection that does not answer. A caller that is not polled reads no answers: the engine asks by itself before
/// that says anything of the server.
fn check_silence(connection: &Arc<Connection>, now: Moment) {
    let silence = connection.health.silent_for(now);
    if silence > SILENCE {
        connection.health.mark_lost("no answer");
    } else if silence > SILENCE / 4 {
        let connection = connection.clone();
        background::spawn(async move { connection.ask_time().await });
    }
}
