//! A link: one inbox, and the connection behind it, made anew whenever it breaks.
//!
//! A link lives on the runtime of those who call, so that a command costs no hop between threads. The engine has one
//! of its own, the home link, for everything that has to outlive a runtime.

use std::{
    fmt,
    future::Future,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use lock_core::{
    backend::BackendError,
    key::{FENCE, LockName},
    lease::Moment,
};
use redis::Value;
use tokio::{runtime::Handle, sync::watch};
use uuid::Uuid;

use super::{
    Server,
    attempt::Args,
    block::Standing,
    connection::{Connection, Identity, OPEN_PATIENCE, Parking, Pushed},
    lines::Lines,
    notify::Notified,
    script,
};
use crate::{clock::boot as clock, engine};

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

pub(super) struct Link {
    pub(super) inbox: Arc<str>,
    state: watch::Sender<State>,
    runtime: OnceLock<Handle>,
    /// Those who queue.
    pub(super) lines: Lines,
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
            runtime: OnceLock::new(),
            lines: Lines::default(),
            notified: Notified::default(),
            parking: Arc::default(),
        })
    }

    /// Lets the link run on `runtime`. On one that has ended it ends at once.
    pub(super) fn run(self: &Arc<Self>, server: &Arc<Server>, runtime: &Handle) {
        self.runtime.get_or_init(|| runtime.clone());
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

    /// Lets something run where the link does; it ends with that runtime.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.runtime.get().unwrap_or_else(|| engine::handle());
        runtime.spawn(future);
    }

    /// The connection, if there is one right now.
    pub(super) fn connected(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            State::Up(connection) if !connection.health.is_broken() => Some(connection.clone()),
            _ => None,
        }
    }

    /// The connection, as soon as there is one.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
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

    pub(super) fn has_ended(&self) -> bool {
        matches!(&*self.state.borrow(), State::Ended)
    }

    /// Ends the link: nobody can connect or wait any more.
    pub(super) fn end(&self) {
        let last = self.state.send_replace(State::Ended);
        if let State::Up(connection) = last {
            connection.health.mark_broken();
        }
        self.lines.clear();
        self.parking.leave();
    }

    /// Ends the waiting of all who wait here.
    pub(super) fn dismiss_waiters(&self) {
        self.notified.wake_all();
        self.lines.clear();
    }

    /// There is something to watch.
    pub(super) fn watch(&self) {
        self.parking.watch();
    }

    /// To the inbox, a grant and the name of its lock, `token|lease|inbox|owner owner …|name`: the owners hold now, each in
    /// its turn; or `free|name`: nobody holds, and nobody queues. To another channel: the lock of that channel is free.
    fn pushed(self: &Arc<Self>, server: &Arc<Server>, push: &Pushed) {
        if *push.channel != *self.inbox {
            self.notified.wake(&push.channel);
        } else if let Some(name) = push.payload.strip_prefix("free|") {
            self.notified.wake(name);
        } else if let Some((grant, name)) = split_at_name(&push.payload)
            && let Some(standing) = Standing::pushed(grant, push.after)
        {
            server.take_up(self, &LockName::stored(name), standing);
        } else {
            tracing::warn!(payload = %push.payload, "not understood: a push to the inbox");
        }
    }

    /// The locks that are waited for here, each with one that waits for it. What this very process holds is left out: it
    /// will release.
    fn awaited(&self, server: &Server) -> Vec<Arc<Args>> {
        self.lines.awaited(|name| server.held.contains(name))
    }

    /// Whether nobody waits here, and no command is under way.
    fn is_idle(&self) -> bool {
        let quiet = match &*self.state.borrow() {
            State::Up(connection) => connection.health.is_idle(),
            State::Connecting | State::Ended => false,
        };
        quiet && self.lines.is_empty()
    }

    /// Sends the requests of all who were queued again, with their old places: over a new connection, or where the
    /// server has lost the queue of this lock.
    pub(super) fn requeue(self: &Arc<Self>, server: &Arc<Server>, only: Option<&LockName>) {
        for name in self.lines.requeue(only) {
            self.ask(server, &name);
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
                            self.requeue(server, Some(&args.names.lock));
                        }
                    }
                    grant => self.found(server, awaited, grant, sent),
                }
            }
        }
    }

    /// A grant of this inbox that a look came upon: its push is late, or was lost.
    fn found(
        self: &Arc<Self>,
        server: &Arc<Server>,
        awaited: &[Arc<Args>],
        grant: Value,
        asked: Moment,
    ) {
        let found = redis::from_redis_value::<(usize, String, u64)>(grant).ok();
        if let Some((number, grant, left)) = found
            && let Some(args) = awaited.get(number.wrapping_sub(1))
            && let Some(standing) = Standing::told(&grant, left, asked)
        {
            server.take_up(self, &args.names.lock, standing);
        }
    }
}

/// Parts a grant, which has three `|`, from what is after the fourth.
fn split_at_name(payload: &str) -> Option<(&str, &str)> {
    let (fourth, _) = payload.match_indices('|').nth(3)?;
    Some((&payload[..fourth], &payload[fourth + 1..]))
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
            let (weak, of) = (Arc::downgrade(&self.link), self.server.clone());
            let on_push = move |push| {
                if let (Some(link), Some(server)) = (weak.upgrade(), of.upgrade()) {
                    link.pushed(&server, &push);
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
                    self.link.requeue(&server, None);
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
                    for name in server.blocks.late(&link, clock::now()) {
                        link.requeue(&server, Some(&name));
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
