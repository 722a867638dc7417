//! One acquisition on a Redis server, from its first request to its grant.

use std::{
    sync::{
        self, Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Renewed, Request},
    fencing::FencingToken,
    key::FENCE,
    lease::{CLAIM, Grant, Moment, less_drift},
    owner::OwnerId,
};
use redis::{FromRedisValue, Value};
use tokio::sync::{Mutex, oneshot};

use super::{
    Duty, Server,
    block::{Standing, Turn},
    claim_ms,
    connection::{CallError, Connection},
    layout::{Names, Scripts},
    lines::Told,
    link::Link,
    notify,
};
use crate::{clock::boot as clock, engine, sync::lock};

/// Between two tries while the server cannot answer for the moment.
pub(super) const NOT_NOW_PAUSE: Duration = Duration::from_millis(50);
/// How long a clean-up trusts the connection that carried the request.
const SAME_CONNECTION_PATIENCE: Duration = Duration::from_secs(1);
/// How long one try of a clean-up over the home link may take.
const HOME_PATIENCE: Duration = Duration::from_secs(2);
/// How long after a request's own end the server's clock may lag before the request counts as refused.
const LATE_SLACK: Duration = Duration::from_secs(1);

/// What every request of one acquisition says, the same bytes for life: a retry with other bytes would queue twice.
#[derive(Debug)]
pub(super) struct Args {
    pub(super) names: Names,
    pub(super) scripts: &'static Scripts,
    pub(super) owner: OwnerId,
    pub(super) lease: Duration,
    pub(super) wait: Duration,
    inbox: Arc<str>,
    /// Its place in the queue, once the server has given one: what it comes back to. Zero before.
    place: AtomicU64,
    /// Asks to be woken when a lock that is not free becomes free.
    notified: bool,
    /// Held while the link sends the request, so that none is under way once the acquisition is over.
    pub(super) gate: Mutex<()>,
    /// It has been answered for good, or leaves: no request is sent any more.
    over: AtomicBool,
    /// The connection that carried the newest request.
    carried: sync::Mutex<Option<Arc<Connection>>>,
}

/// The server's answer to a request.
#[derive(Debug)]
pub(super) enum Reply {
    Granted(Grant),
    /// Granted already: an earlier request was carried out.
    Held(Standing),
    Busy,
    /// The place in the queue.
    Queued(u64),
    /// The request came after its own end: nothing was changed.
    Late,
}

/// What leaving found on the server.
enum Left {
    /// The owner is neither queued nor inside.
    Out,
    /// It is an owner of this grant, which was left as it is.
    Held(Standing),
}

/// Milliseconds, rounded up: no lease is shorter on the server than it is here, and no wait.
pub(super) fn millis(time: Duration) -> String {
    time.as_nanos().div_ceil(1_000_000).to_string()
}

pub(super) fn not_understood(error: &impl std::fmt::Display) -> BackendError {
    BackendError::Refused(format!("an answer that is not understood: {error}"))
}

pub(super) fn decode<T: FromRedisValue>(value: Value) -> Result<T, CallError> {
    T::from_redis_value(value).map_err(|error| CallError::Refused(not_understood(&error)))
}

impl Args {
    pub(super) fn new(server: &Server, request: &Request, inbox: Arc<str>, notified: bool) -> Self {
        Self {
            scripts: server.scripts,
            notified,
            names: server.names(&request.name),
            owner: request.owner,
            lease: request.lease.time,
            wait: request.wait,
            inbox,
            place: AtomicU64::new(0),
            gate: Mutex::default(),
            over: AtomicBool::new(false),
            carried: sync::Mutex::default(),
        }
    }

    pub(super) fn place(&self) -> Option<u64> {
        Some(self.place.load(Ordering::Acquire)).filter(|place| *place > 0)
    }

    /// Whether no request is to be sent any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The newest request goes over this connection.
    pub(super) fn carry(&self, connection: &Arc<Connection>) {
        *lock(&self.carried) = Some(connection.clone());
    }

    /// From its end on no request is under way, and none will be sent.
    async fn end(&self) {
        self.over.store(true, Ordering::Release);
        drop(self.gate.lock().await);
    }

    pub(super) fn set_place(&self, place: u64) {
        self.place.store(place, Ordering::Release);
    }

    /// The owner's member of the queue.
    pub(super) fn member(&self) -> String {
        let (lease, wait) = (millis(self.lease), millis(self.wait));
        format!("{}|{}|{lease}|{wait}", self.owner, self.inbox)
    }

    /// What the grant says after its token.
    pub(super) fn tail(&self) -> String {
        format!("{}|{}|{}", millis(self.lease), self.inbox, self.owner)
    }

    /// Until when what has been sent has an effect, at the longest.
    fn run_out(&self) -> Moment {
        clock::now() + self.wait + self.lease.max(CLAIM) + LATE_SLACK
    }

    /// Where late requests cannot be stopped by closing the connection they were sent on, they stop themselves: the
    /// server's time from which on this one does nothing, empty if there is none.
    pub(super) fn not_after(&self, connection: &Connection) -> String {
        if connection.may_kill {
            String::new()
        } else {
            let end = clock::now() + self.wait + LATE_SLACK;
            connection.server_micros(end).to_string()
        }
    }

    /// A grant in the reply to a request that was sent then.
    fn taken(&self, token: i64, sent: Moment) -> Grant {
        Grant {
            token: FencingToken::new(u64::try_from(token).unwrap_or_default()),
            valid_until: Some(sent + less_drift(self.lease)),
            validity: self.lease,
            queued: false,
        }
    }

    /// Sends the request over `connection`.
    pub(super) async fn acquire(&self, connection: &Connection) -> Result<Reply, CallError> {
        let asking = {
            let marker = if self.notified {
                notify::marker(&self.inbox)
            } else {
                String::new()
            };
            let keys = [self.names.grant(), self.names.companion(), FENCE];
            let (tail, not_after) = (self.tail(), self.not_after(connection));
            let args = [
                tail.as_str(),
                &millis(self.lease),
                &connection.floor,
                &millis(self.wait),
                claim_ms(),
                &not_after,
                &marker,
            ];
            let count = args.len() - usize::from(!self.notified);
            connection.run(self.scripts.acquire, &keys, &args[..count])
        };
        let (reply, sent) = asking.await?;
        let reply = match reply {
            Value::Int(token) => {
                return Ok(Reply::Granted(self.taken(token, sent)));
            }
            reply => reply,
        };
        let reply: Vec<Value> = decode(reply)?;
        let mut fields = reply.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let state: String = decode(next())?;
        Ok(match state.as_str() {
            "held" => {
                let standing = standing(next(), next(), sent)?;
                if let Some(place) = decode(next())? {
                    self.place
                        .compare_exchange(0, place, Ordering::AcqRel, Ordering::Relaxed)
                        .ok();
                }
                Reply::Held(standing)
            }
            "queued" => Reply::Queued(decode(next())?),
            "busy" => Reply::Busy,
            _ => Reply::Late,
        })
    }

    /// Takes the owner out of the queue; out of the lock, too, if it is to be given up and nobody shares it.
    async fn leave(&self, connection: &Connection, give_up: bool) -> Result<Left, CallError> {
        let leaving = {
            let keys = [self.names.grant(), self.names.companion(), FENCE];
            let (owner, member) = (self.owner.to_string(), self.member());
            let args = [
                owner.as_str(),
                &member,
                &connection.floor,
                claim_ms(),
                if give_up { "abandon" } else { "enter" },
            ];
            connection.run(self.scripts.leave, &keys, &args)
        };
        let (reply, sent) = leaving.await?;
        let reply: Vec<Value> = decode(reply)?;
        let mut fields = reply.into_iter().skip(1);
        Ok(match (fields.next(), fields.next()) {
            (Some(grant), Some(left)) => Left::Held(standing(grant, left, sent)?),
            _ => Left::Out,
        })
    }
}

/// A grant in a reply to what was sent then.
fn standing(grant: Value, left: Value, sent: Moment) -> Result<Standing, CallError> {
    let (grant, left): (String, u64) = (decode(grant)?, decode(left)?);
    Standing::told(&grant, left, sent)
        .ok_or_else(|| CallError::Refused(not_understood(&format_args!("`{grant}`"))))
}

/// What has been sent so far.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) link: Arc<Link>,
    pub(super) args: Arc<Args>,
}

/// An acquisition under way.
pub(super) struct RedisAttempt {
    server: Arc<Server>,
    request: Request,
    /// Whether the process waits without a queue, and is to be woken.
    notified: bool,
    /// `None` until the first request.
    pub(super) sent: Option<Sent>,
    /// Where word of its turn arrives, from before the owner is queued.
    told: Option<oneshot::Receiver<Told>>,
    /// Its turn, which has come and is not taken up yet.
    turn: Option<Box<Turn>>,
    /// Whether a request has no answer, and may have been carried out.
    unsure: bool,
    pub(super) settled: bool,
    /// From the first request on, shutting down waits until this attempt is settled or cleaned up.
    pub(super) duty: Option<Duty>,
}

/// What a request came to.
enum Asked {
    Granted(Grant),
    /// In its turn.
    Turn(Turn),
    Busy,
    /// It has to be sent again.
    Again,
}

impl RedisAttempt {
    pub(super) fn new(server: Arc<Server>, request: Request) -> Self {
        Self {
            server,
            request,
            notified: false,
            sent: None,
            told: None,
            turn: None,
            unsure: false,
            settled: false,
            duty: None,
        }
    }

    /// One try; if it is in vain, the link's inbox is woken when the lock is free.
    pub(super) fn notified(server: Arc<Server>, request: Request) -> Self {
        let once = Request {
            wait: Duration::ZERO,
            ..request
        };
        let mut attempt = Self::new(server, once);
        attempt.notified = true;
        attempt
    }

    async fn settle(&mut self) {
        if let Some(sent) = &self.sent {
            sent.args.end().await;
            sent.link.lines.forget(&sent.args);
        }
        self.settled = true;
    }

    /// Where the request goes: the link of the one before, unless that has ended.
    async fn way(&mut self) -> Result<Option<(Sent, Arc<Connection>)>, BackendError> {
        let mut place = None;
        if self.sent.as_ref().is_some_and(|sent| sent.link.has_ended())
            && let Some(old) = self.sent.take()
        {
            place = old.args.place();
            // The runtime of its link has ended: the owner leaves there, and takes its place along to a new inbox.
            let turn = self.last_word();
            let _ = engine::spawn(give_up(self.server.clone(), old, turn)).await;
        }
        Ok(match &self.sent {
            Some(sent) => match sent.link.connection().await {
                Ok(connection) => Some((sent.clone(), connection)),
                Err(_) if !self.server.is_refusing() => None,
                Err(error) => return Err(error),
            },
            None => {
                let (link, connection) = self.server.connected().await?;
                let inbox = link.inbox.clone();
                let args = Args::new(&self.server, &self.request, inbox, self.notified);
                args.set_place(place.unwrap_or_default());
                let args = Arc::new(args);
                Some((Sent { link, args }, connection))
            }
        })
    }

    /// One request, alone or together with those of others, and what came of it.
    async fn request(&mut self) -> Result<Asked, BackendError> {
        // Boxed: it is gone while the caller waits for its turn.
        let Some((sent, connection)) = Box::pin(self.way()).await? else {
            return Ok(Asked::Again);
        };
        let Sent { link, args } = &sent;
        if self.duty.is_none() {
            self.duty = Some(self.server.begin_duty());
        }
        self.sent = Some(sent.clone());
        if self.told.is_none() && !self.request.wait.is_zero() {
            let (told, alone) = link.lines.join(args);
            self.told = Some(told);
            link.watch();
            if !alone {
                link.ask(&self.server, &args.names.lock);
                return self.turn().await;
            }
        }
        args.carry(&connection);
        match args.acquire(&connection).await {
            Ok(Reply::Granted(grant)) => Ok(Asked::Granted(grant)),
            Ok(Reply::Busy) => Ok(Asked::Busy),
            Ok(Reply::Held(standing)) if self.told.is_none() => Ok(Asked::Turn(standing.sole())),
            Ok(Reply::Held(standing)) => {
                self.server.take_up(link, &args.names.lock, standing);
                self.turn().await
            }
            Ok(Reply::Queued(place)) => {
                link.lines.queued(args, place);
                tracing::debug!(lock = %args.names.lock, place, "queued");
                self.turn().await
            }
            Ok(Reply::Late) => {
                // The server's clock was set forward, or the request lay about: a new connection knows its clock.
                connection.health.mark_demoted();
                clock::sleep_until(clock::now() + NOT_NOW_PAUSE).await;
                Ok(Asked::Again)
            }
            Err(CallError::Broken(detail)) => {
                self.unsure = true;
                self.server.note(detail);
                Ok(Asked::Again)
            }
            Err(CallError::NotNow(detail) | CallError::Demoted(detail)) => {
                self.server.note(detail);
                clock::sleep_until(clock::now() + NOT_NOW_PAUSE).await;
                Ok(Asked::Again)
            }
            Err(CallError::Refused(error)) => {
                if !self.unsure {
                    // Nothing was carried out: there is nothing to give back.
                    self.settle().await;
                }
                Err(error)
            }
        }
    }

    /// Waits for its turn.
    async fn turn(&mut self) -> Result<Asked, BackendError> {
        let told = self.told.as_mut().expect("a caller that queues is told");
        let told = told.await;
        self.told = None;
        match told {
            Ok(Ok(turn)) => Ok(Asked::Turn(turn)),
            Ok(Err(error)) => Err(error),
            Err(_) if self.server.is_refusing() => Err(BackendError::ShutDown),
            Err(_) => Ok(Asked::Again),
        }
    }

    /// Makes sure that a turn is young enough to start on: with less than two thirds left of what was confirmed, it has
    /// to be renewed first. `None` if it is not held any more.
    async fn confirm(&self, turn: Turn) -> Result<Option<Grant>, BackendError> {
        let Turn { grant, confirmed } = turn;
        let left = grant.remaining(clock::now()).unwrap_or(confirmed);
        if left >= confirmed * 2 / 3 {
            return Ok(Some(grant));
        }
        let lease = self.request.lease.time;
        let renewed = self
            .server
            .renew(&self.request.name, grant.token, lease, "");
        // Boxed: few need it.
        Ok(match Box::pin(renewed).await? {
            Renewed::Until(until) => Some(Grant {
                valid_until: Some(until),
                validity: lease,
                ..grant
            }),
            Renewed::NotHeld => None,
        })
    }

    /// Its turn, if it has one by what leaving found.
    fn last_turn(&mut self, left: Left) -> Option<Box<Turn>> {
        let sent = self.sent.clone()?;
        let name = &sent.args.names.lock;
        match left {
            Left::Out => {
                // What it may have been told of is gone.
                let turn = self.last_word()?;
                self.server.lose(name, turn.grant.token);
                None
            }
            Left::Held(standing) if standing.owners.len() == 1 => {
                self.last_word();
                Some(Box::new(standing.sole()))
            }
            Left::Held(standing) => {
                let until = standing.until();
                self.server.take_up(&sent.link, name, standing);
                let mut turn = self.last_word()?;
                // The same grant as it stands now, which may be longer.
                self.server
                    .blocks
                    .confirm(name, turn.grant.token, until, false);
                turn.grant.valid_until = turn.grant.valid_until.max(Some(until));
                Some(turn)
            }
        }
    }

    /// Its turn, if that has come; it does not come any more otherwise.
    fn last_word(&mut self) -> Option<Box<Turn>> {
        let mut told = self.told.take();
        self.turn.take().or_else(|| {
            let told = told.as_mut()?;
            told.close();
            told.try_recv().ok()?.ok().map(Box::new)
        })
    }
}

impl Attempt for RedisAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            loop {
                if self.server.is_refusing() {
                    return Err(BackendError::ShutDown);
                }
                match self.request().await? {
                    Asked::Granted(grant) => {
                        self.settle().await;
                        return Ok(Answer::Granted(grant));
                    }
                    Asked::Turn(turn) => {
                        self.turn = Some(Box::new(turn));
                        let confirmed = self.confirm(turn).await?;
                        if let Some(grant) = confirmed {
                            self.settle().await;
                            self.turn = None;
                            return Ok(Answer::Granted(grant));
                        }
                        self.turn = None;
                        let Turn { grant, .. } = turn;
                        self.server.blocks.forget(&self.request.name, grant.token);
                    }
                    Asked::Busy => {
                        self.settle().await;
                        return Ok(Answer::Busy);
                    }
                    Asked::Again => {}
                }
            }
        })
    }

    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        Box::pin(async move {
            loop {
                let Some(sent) = &self.sent else {
                    let detail = self
                        .server
                        .trouble()
                        .unwrap_or_else(|| "not connected".into());
                    return Err(BackendError::Unreachable(detail));
                };
                let connection = sent.link.connection().await?;
                sent.args.end().await;
                match sent.args.leave(&connection, false).await {
                    Ok(left) => {
                        self.turn = self.last_turn(left);
                        let leaving = match &self.turn {
                            Some(turn) => Leaving::Granted(turn.grant),
                            None => Leaving::Left,
                        };
                        self.settle().await;
                        self.turn = None;
                        return Ok(leaving);
                    }
                    Err(CallError::Refused(error)) => return Err(error),
                    Err(CallError::Broken(detail)) => self.server.note(detail),
                    Err(CallError::NotNow(detail) | CallError::Demoted(detail)) => {
                        self.server.note(detail);
                        clock::sleep_until(clock::now() + NOT_NOW_PAUSE).await;
                    }
                }
            }
        })
    }
}

impl Drop for RedisAttempt {
    fn drop(&mut self) {
        let turn = self.last_word();
        if !self.settled
            && let Some(sent) = self.sent.take()
        {
            let server = self.server.clone();
            let duty = self.duty.take();
            engine::spawn(async move {
                give_up(server, sent, turn).await;
                drop(duty);
            });
        }
    }
}

/// Gives back what an acquisition has got: its turn, or its place.
async fn give_up(server: Arc<Server>, sent: Sent, turn: Option<Box<Turn>>) {
    let Some(turn) = turn else {
        return clean_up(server, sent).await;
    };
    let grant = turn.grant;
    // Nothing of it is sent again after the release.
    end(&server, &sent).await;
    let name = sent.args.names.lock.clone();
    let ends = grant.valid_until.unwrap_or_else(clock::now);
    server.give_back(name, grant.token, ends).await;
}

/// Ends when no request is under way any more, and returns the connection that carried the newest one, if one did.
async fn end(server: &Arc<Server>, sent: &Sent) -> Option<Arc<Connection>> {
    let Sent { link, args } = sent;
    let patience = clock::now() + SAME_CONNECTION_PATIENCE;
    let ended = clock::timeout_at(patience, args.end()).await;
    let carried = lock(&args.carried).clone();
    if ended.is_none()
        && let Some(connection) = &carried
    {
        // Nobody drives the runtime of that link, or the server is silent.
        connection.health.mark_broken();
        until_closed(server, link, connection, args).await;
    }
    carried
}

/// Ends when nothing that was sent over a connection which is broken can be carried out any more: the server may not have
/// read all of it yet.
pub(super) async fn until_closed(
    server: &Arc<Server>,
    link: &Link,
    connection: &Connection,
    args: &Args,
) {
    let closing = async {
        loop {
            // The first thing that a new connection of the link does is to close the one before.
            if link
                .connected()
                .is_some_and(|new| new.identity != connection.identity)
            {
                return;
            }
            if let Ok(home) = server.home().connection().await
                && (!home.may_kill || home.kill(&connection.identity).await.is_ok())
            {
                return;
            }
            clock::sleep_until(clock::now() + NOT_NOW_PAUSE).await;
        }
    };
    clock::timeout_at(args.run_out(), closing).await;
}

/// Makes sure that nothing of an acquisition stays behind: the same connection keeps the order of request and leaving;
/// where it does not answer, it is closed on the server before the home link leaves.
pub(super) async fn clean_up(server: Arc<Server>, sent: Sent) {
    sent.link.lines.forget(&sent.args);
    let Some(connection) = end(&server, &sent).await else {
        return;
    };
    let Sent { link, args } = sent;
    if !connection.health.is_broken() {
        let patience = clock::now() + SAME_CONNECTION_PATIENCE;
        match clock::timeout_at(patience, args.leave(&connection, true)).await {
            Some(Ok(left)) => {
                if let Left::Held(standing) = left {
                    server.take_up(&link, &args.names.lock, standing);
                }
                return;
            }
            Some(Err(CallError::Refused(BackendError::WrongLayout))) => return,
            Some(Err(CallError::Refused(error))) => {
                tracing::warn!(lock = %args.names.lock, %error, "an abandoned acquisition runs out by itself");
                return;
            }
            _ => {}
        }
        // It is closed on the server below, and of no use to anybody else either.
        connection.health.mark_broken();
    }
    let until = args.run_out();
    let mut backoff = NOT_NOW_PAUSE;
    while clock::now() < until {
        let leaving = async {
            let home = server.home().connection().await.ok()?;
            if home.may_kill {
                home.kill(&connection.identity).await.ok()?;
            }
            let left = args.leave(&home, true).await.ok()?;
            if let Left::Held(standing) = left {
                server.take_up(&link, &args.names.lock, standing);
            }
            // A late request that cannot be stopped may still come, until it refuses itself.
            home.may_kill.then_some(())
        };
        let patience = clock::now() + HOME_PATIENCE;
        if let Some(Some(())) = clock::timeout_at(patience, leaving).await {
            return;
        }
        clock::sleep_until(clock::now() + backoff).await;
        backoff = (backoff * 2).min(Duration::from_secs(1));
    }
    tracing::warn!(lock = %args.names.lock, "an abandoned acquisition could not be cleaned up; it has run out by itself");
}
