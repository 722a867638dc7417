//! A link: one inbox, and the connection behind it, made anew whenever it breaks.
//!
//! A link lives on the runtime of those who call, so that a command costs no hop between threads. The engine has one
//! of its own, the home link, for everything that has to outlive a runtime.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use lock_core::{
    backend::BackendError,
    fencing::FencingToken,
    key::{FENCE, LockName},
    lease::{CLAIM, Grant, Moment, less_drift},
    owner::OwnerId,
};
use redis::Value;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};
use uuid::Uuid;

use super::{
    Server,
    attempt::{Args, Reply, until_closed},
    connection::{CallError, Connection, Identity, OPEN_PATIENCE, Parking, Pushed},
    notify::Notified,
    script,
};
use crate::{clock::boot as clock, engine, sync::lock};

/// While somebody waits here, the keys are looked at this often.
const HEARTBEAT: Duration = Duration::from_millis(200);
/// A connection that leaves commands unanswered for so long is given up.
const SILENCE: Duration = Duration::from_secs(2);
/// Between two tries to connect: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// How many locks one look covers.
const LOOK_AT_MOST: usize = 200;

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Up(Arc<Connection>),
    /// Its runtime has ended, or the client was shut down.
    Ended,
}

/// A waiter that the server knows, or is being told of.
struct Waiting {
    args: Arc<Args>,
    /// Its place in the queue, once the server has given one.
    place: Option<String>,
    granted: oneshot::Sender<Grant>,
}

pub(super) struct Link {
    pub(super) inbox: Arc<str>,
    state: watch::Sender<State>,
    waiting: Mutex<HashMap<OwnerId, Waiting>>,
    /// Those who wait without a queue.
    pub(super) notified: Notified,
    /// Where the heartbeat sleeps.
    parking: Arc<Parking>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("inbox", &self.inbox)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// A link that does not run yet.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            inbox: format!("lock:inbox:{}", Uuid::new_v4().simple()).into(),
            state: watch::Sender::new(State::Connecting),
            waiting: Mutex::default(),
            notified: Notified::default(),
            parking: Arc::default(),
        })
    }

    /// Lets the link run on `runtime`. On one that has ended it ends at once.
    pub(super) fn run(self: &Arc<Self>, server: &Arc<Server>, runtime: &Handle) {
        let ending = Ending {
            link: self.clone(),
            server: Arc::downgrade(server),
        };
        runtime.spawn(ending.supervise());
        engine::spawn(beat(
            Arc::downgrade(self),
            self.parking.clone(),
            Arc::downgrade(server),
        ));
    }

    /// The connection, as soon as there is one.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        if let State::Up(connection) = &*self.state.borrow()
            && !connection.health.is_broken()
        {
            return Ok(connection.clone());
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

    pub(super) fn has_ended(&self) -> bool {
        matches!(&*self.state.borrow(), State::Ended)
    }

    /// Ends the link: nobody can connect or wait any more.
    pub(super) fn end(&self) {
        let last = self.state.send_replace(State::Ended);
        if let State::Up(connection) = last {
            connection.health.mark_broken();
        }
        lock(&self.waiting).clear();
        self.parking.leave();
    }

    /// Ends the waiting of all who wait here.
    pub(super) fn dismiss_waiters(&self) {
        self.notified.wake_all();
        lock(&self.waiting).clear();
    }

    /// Expects a push for this owner; before its request is sent, for the push may be as quick as the reply.
    pub(super) fn expect(&self, args: Arc<Args>) -> oneshot::Receiver<Grant> {
        let (granted, receiver) = oneshot::channel();
        let owner = args.owner;
        let waiting = Waiting {
            args,
            place: None,
            granted,
        };
        lock(&self.waiting).insert(owner, waiting);
        self.parking.watch();
        receiver
    }

    /// Notes an owner's place, for the resending after a reconnect.
    pub(super) fn queued(&self, owner: OwnerId, place: &str) {
        if let Some(waiting) = lock(&self.waiting).get_mut(&owner) {
            waiting.place = Some(place.to_owned());
        }
    }

    /// Expects nothing for this owner any more.
    pub(super) fn forget(&self, owner: OwnerId) {
        lock(&self.waiting).remove(&owner);
    }

    fn expects(&self, owner: OwnerId) -> bool {
        lock(&self.waiting).contains_key(&owner)
    }

    /// Hands a grant to its waiter, if it still waits.
    fn deliver(&self, owner: OwnerId, grant: impl FnOnce(&Args) -> Grant) {
        let Some(waiting) = lock(&self.waiting).remove(&owner) else {
            return;
        };
        let grant = grant(&waiting.args);
        // An owner that has gone meanwhile gives the grant back by itself.
        let _ = waiting.granted.send(grant);
    }

    /// To the inbox, `token|lease|owner owner …|name`: the owners hold now, under the token and those after it; or
    /// `free|name`: nobody holds, and nobody queues. To another channel: the lock of that channel is free.
    fn pushed(&self, push: &Pushed) {
        if *push.channel != *self.inbox {
            self.notified.wake(&push.channel);
        } else if let Some(name) = push.payload.strip_prefix("free|") {
            self.notified.wake(name);
        } else {
            self.granted(push);
        }
    }

    fn granted(&self, push: &Pushed) {
        let mut fields = push.payload.splitn(4, '|');
        let (Some(Ok(token)), Some(_lease), Some(owners)) = (
            fields.next().map(str::parse::<u64>),
            fields.next(),
            fields.next(),
        ) else {
            tracing::warn!(payload = %push.payload, "not understood: a push to the inbox");
            return;
        };
        for (token, owner) in (token..).zip(owners.split(' ')) {
            if let Ok(owner) = owner.parse() {
                self.deliver(owner, |args| {
                    claimed(token, args.lease.min(CLAIM), push.after)
                });
            }
        }
    }

    /// The locks that are waited for here, each with one that waits for it. What this very process holds is left out: it
    /// will release.
    fn awaited(&self, server: &Server) -> Vec<Arc<Args>> {
        let waiting = lock(&self.waiting);
        let queued = waiting.values().filter(|waiting| waiting.place.is_some());
        let by_lock: HashMap<&LockName, &Arc<Args>> = queued
            .map(|waiting| (&waiting.args.names.lock, &waiting.args))
            .collect();
        by_lock
            .into_iter()
            .filter(|(name, _)| !server.held.contains(name))
            .map(|(_, args)| args.clone())
            .collect()
    }

    /// Whether nobody waits here, and no command is under way.
    fn is_idle(&self) -> bool {
        let quiet = match &*self.state.borrow() {
            State::Up(connection) => connection.health.is_idle(),
            State::Connecting | State::Ended => false,
        };
        quiet && lock(&self.waiting).is_empty()
    }

    /// Sends the requests of all who were queued again, with their old places: over a new connection, or where the
    /// server has lost the queue of this lock.
    fn resend(
        self: &Arc<Self>,
        server: &Arc<Server>,
        connection: &Arc<Connection>,
        only: Option<&LockName>,
    ) {
        let mut queued: Vec<_> = lock(&self.waiting)
            .values()
            .filter(|waiting| only.is_none_or(|name| waiting.args.names.lock == *name))
            .filter_map(|waiting| Some((waiting.args.clone(), waiting.place.clone()?)))
            .collect();
        // The first to arrive may find the lock free. Tasks of the engine's one thread begin in the order of spawning.
        queued.sort_by_key(|(_, place)| place.parse::<u64>().unwrap_or(u64::MAX));
        for (args, place) in queued {
            let (link, connection, server) = (self.clone(), connection.clone(), server.clone());
            engine::spawn(async move {
                let _duty = server.begin_duty();
                // While the gate is held, the owner neither settles nor leaves.
                let mut gate = args.gate.lock().await;
                if gate.over || !link.expects(args.owner) {
                    return;
                }
                gate.carried = Some(connection.clone());
                match args.acquire(&connection, Some(&place)).await {
                    Ok(Reply::Granted(grant)) => link.deliver(args.owner, |_| grant),
                    Ok(_) => {}
                    Err(CallError::Broken(detail)) => {
                        // The owner may be granted meanwhile, and leave over another connection: not before this.
                        tracing::debug!(detail, "not queued again, to be tried with the next look");
                        until_closed(&server, &connection, &args).await;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "not queued again, to be tried with the next look");
                    }
                }
            });
        }
    }

    /// Frees what expired, finds grants whose push was lost, and queues again where the server has lost a queue.
    async fn look(
        self: &Arc<Self>,
        server: &Arc<Server>,
        connection: &Arc<Connection>,
        awaited: &[Arc<Args>],
    ) {
        for awaited in awaited.chunks(LOOK_AT_MOST) {
            let members: Vec<String> = awaited.iter().map(|args| args.member()).collect();
            let mut keys = vec![FENCE];
            let mut args = vec![&*self.inbox, connection.floor.as_str(), super::claim_ms()];
            for (awaited, member) in awaited.iter().zip(&members) {
                keys.extend([awaited.names.grant(), awaited.names.companion()]);
                args.push(member);
            }
            let looked = connection.run(&script::LOOK, &keys, &args).await;
            let Ok((Value::Array(found), sent)) = looked else {
                return;
            };
            for found in found {
                match found {
                    Value::Int(number) => {
                        let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
                        if let Some(args) = awaited.get(index) {
                            tracing::debug!(lock = %args.names.lock, "the server has lost the queue, queueing again");
                            self.resend(server, connection, Some(&args.names.lock));
                        }
                    }
                    grant => self.found(grant, sent),
                }
            }
        }
    }

    /// A grant of this inbox that a look came upon: its push is late, or was lost.
    fn found(&self, grant: Value, sent: Moment) {
        let Ok((owner, token, left)) = redis::from_redis_value::<(String, u64, u64)>(grant) else {
            return;
        };
        if let Ok(owner) = owner.parse() {
            self.deliver(owner, |_| claimed(token, Duration::from_millis(left), sent));
        }
    }
}

/// A grant that a waiter was given, valid from a moment before it.
pub(super) fn claimed(token: u64, validity: Duration, after: Moment) -> Grant {
    Grant {
        token: FencingToken::new(token),
        valid_until: Some(after + less_drift(validity)),
        validity,
        queued: true,
    }
}

/// Ends a link when its supervisor ends, be it by the end of the runtime that it runs on.
struct Ending {
    link: Arc<Link>,
    server: Weak<Server>,
}

impl Ending {
    /// Connects, again and again, until the link has ended.
    async fn supervise(self) {
        let mut previous: Option<Identity> = None;
        let mut backoff = BACKOFF.0;
        let mut state = self.link.state.subscribe();
        loop {
            let Some(server) = self.server.upgrade() else {
                return;
            };
            let weak = Arc::downgrade(&self.link);
            let on_push = move |push| {
                if let Some(link) = weak.upgrade() {
                    link.pushed(&push);
                }
            };
            let opened = Connection::open(
                &server,
                &self.link.inbox,
                previous.clone(),
                self.link.parking.clone(),
                OPEN_PATIENCE,
                on_push,
            )
            .await;
            match opened {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    tracing::debug!(inbox = %self.link.inbox, "connected");
                    server.mended();
                    backoff = BACKOFF.0;
                    previous = Some(connection.identity.clone());
                    let up = self.link.state.send_if_modified(|state| {
                        let connecting = matches!(state, State::Connecting);
                        if connecting {
                            *state = State::Up(connection.clone());
                        }
                        connecting
                    });
                    if !up {
                        return;
                    }
                    self.link.resend(&server, &connection, None);
                    drop(server);
                    connection.health.until_broken().await;
                    let demoted = connection.health.is_demoted();
                    drop(connection);
                    tracing::debug!(inbox = %self.link.inbox, "connection lost");
                    self.link.state.send_if_modified(|state| {
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
                    server.failed(&error);
                    drop(server);
                    let pause = clock::sleep_until(clock::now() + backoff);
                    backoff = (backoff * 2).min(BACKOFF.1);
                    tokio::select! {
                        () = pause => {}
                        _ = state.wait_for(|state| matches!(state, State::Ended)) => {}
                    }
                }
            }
            if self.link.has_ended() {
                return;
            }
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.link.end();
        if let Some(server) = self.server.upgrade() {
            server.retire(&self.link);
        }
    }
}

/// The heartbeat of a link, on the engine's thread: it looks while somebody waits, and notices silence.
async fn beat(link: Weak<Link>, parking: Arc<Parking>, server: Weak<Server>) {
    loop {
        {
            let (Some(link), Some(server)) = (link.upgrade(), server.upgrade()) else {
                return;
            };
            let state = link.state.borrow().clone();
            match state {
                State::Ended => return,
                State::Up(connection) => {
                    if connection.health.silent_for(clock::now()) > SILENCE {
                        tracing::warn!(inbox = %link.inbox, "the lock server does not answer, connecting anew");
                        connection.health.mark_broken();
                    }
                    let awaited = link.awaited(&server);
                    if !awaited.is_empty() {
                        let look = link.look(&server, &connection, &awaited);
                        if clock::timeout_at(clock::now() + SILENCE, look)
                            .await
                            .is_none()
                        {
                            connection.health.mark_broken();
                        }
                    }
                }
                State::Connecting => {}
            }
        }
        parking
            .park(|| link.upgrade().is_some_and(|link| link.is_idle()))
            .await;
        clock::sleep_until(clock::now() + HEARTBEAT).await;
    }
}
