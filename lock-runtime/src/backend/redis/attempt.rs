//! One acquisition on a Redis server, from its first request to its grant.

use std::{sync::Arc, time::Duration};

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
    Duty, Server, claim_ms,
    connection::{CallError, Connection},
    layout::{Names, Scripts},
    link::{Link, claimed},
    notify,
};
use crate::{clock::boot as clock, engine};

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
    wait: Duration,
    inbox: Arc<str>,
    pub(super) lease_ms: String,
    wait_ms: String,
    /// Asks to be woken when a lock that is not free becomes free.
    marker: Option<String>,
    /// Held while the link sends the request again, so that none is under way once the acquisition is over.
    pub(super) gate: Mutex<Gate>,
}

/// Whether an acquisition may still be sent, and what carried it last.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// It has been answered for good, or leaves: no request is sent any more.
    pub(super) over: bool,
    /// The connection that carried the newest request.
    pub(super) carried: Option<Arc<Connection>>,
}

/// The server's answer to a request.
#[derive(Debug)]
pub(super) enum Reply {
    Granted(Grant),
    Busy,
    Queued(String),
    /// The request came after its own end: nothing was changed.
    Late,
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
            marker: notified.then(|| notify::marker(&inbox)),
            names: server.names(&request.name),
            owner: request.owner,
            lease: request.lease.time,
            wait: request.wait,
            inbox,
            lease_ms: millis(request.lease.time),
            wait_ms: millis(request.wait),
            gate: Mutex::default(),
        }
    }

    /// The owner's member of the queue.
    pub(super) fn member(&self) -> String {
        let Self {
            owner,
            inbox,
            lease_ms,
            wait_ms,
            ..
        } = self;
        format!("{owner}|{inbox}|{lease_ms}|{wait_ms}")
    }

    /// A grant that a reply names, valid from the sending of its request.
    pub(super) fn held(&self, token: u64, left: u64, sent: Moment) -> Grant {
        let left = Duration::from_millis(left);
        Grant {
            queued: false,
            ..claimed(token, left.min(self.lease), sent)
        }
    }

    /// What the grant says after its token.
    pub(super) fn tail(&self) -> String {
        format!("{}|{}|{}", self.lease_ms, self.inbox, self.owner)
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
    pub(super) async fn acquire(
        &self,
        connection: &Connection,
        place: Option<&str>,
    ) -> Result<Reply, CallError> {
        let keys = [self.names.grant(), self.names.companion(), FENCE];
        let (tail, not_after) = (self.tail(), self.not_after(connection));
        let args = [
            tail.as_str(),
            &self.lease_ms,
            &connection.floor,
            &self.wait_ms,
            claim_ms(),
            place.unwrap_or_default(),
            &not_after,
            self.marker.as_deref().unwrap_or_default(),
        ];
        let count = args.len() - usize::from(self.marker.is_none());
        let asking = connection.run(self.scripts.acquire, &keys, &args[..count]);
        let (reply, sent) = asking.await?;
        let reply = match reply {
            Value::Int(token) => {
                return Ok(Reply::Granted(Grant {
                    queued: place.is_some(),
                    ..self.taken(token, sent)
                }));
            }
            reply => reply,
        };
        let reply: Vec<Value> = decode(reply)?;
        let mut fields = reply.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let state: String = decode(next())?;
        Ok(match state.as_str() {
            "held" => Reply::Granted(Grant {
                queued: place.is_some(),
                ..self.held(decode(next())?, decode(next())?, sent)
            }),
            "queued" => Reply::Queued(decode(next())?),
            "busy" => Reply::Busy,
            _ => Reply::Late,
        })
    }

    /// Takes the owner out of the queue; out of the lock, too, if it is to be given up.
    async fn leave(&self, connection: &Connection, give_up: bool) -> Result<Leaving, CallError> {
        let keys = [self.names.grant(), self.names.companion(), FENCE];
        let (owner, member) = (self.owner.to_string(), self.member());
        let args = [
            owner.as_str(),
            &member,
            &connection.floor,
            claim_ms(),
            if give_up { "abandon" } else { "enter" },
        ];
        let (reply, sent) = connection.run(self.scripts.leave, &keys, &args).await?;
        let reply: Vec<Value> = decode(reply)?;
        let mut fields = reply.into_iter().skip(1);
        Ok(match (fields.next(), fields.next()) {
            (Some(token), Some(left)) => {
                Leaving::Granted(self.held(decode(token)?, decode(left)?, sent))
            }
            _ => Leaving::Left,
        })
    }
}

/// What has been sent so far.
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
    /// Where the grant arrives while the owner is queued.
    granted: Option<oneshot::Receiver<Grant>>,
    place: Option<String>,
    /// Whether a request has no answer, and may have been carried out.
    unsure: bool,
    pub(super) settled: bool,
    /// From the first request on, shutting down waits until this attempt is settled or cleaned up.
    pub(super) duty: Option<Duty>,
}

impl RedisAttempt {
    pub(super) fn new(server: Arc<Server>, request: Request) -> Self {
        Self {
            server,
            request,
            notified: false,
            sent: None,
            granted: None,
            place: None,
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

    async fn settle<T>(&mut self, answer: T) -> T {
        if let Some(sent) = &self.sent {
            sent.args.gate.lock().await.over = true;
            sent.link.forget(sent.args.owner);
        }
        self.settled = true;
        answer
    }

    /// One request, and what came of it. `None`: it has to be sent again.
    async fn request(&mut self) -> Result<Option<Answer>, BackendError> {
        if self.sent.as_ref().is_some_and(|sent| sent.link.has_ended())
            && let Some(old) = self.sent.take()
        {
            // The runtime of its link has ended: the owner leaves there, and takes its place along to a new inbox.
            self.granted = None;
            let _ = engine::spawn(clean_up(self.server.clone(), old)).await;
        }
        let (link, connection) = match &self.sent {
            Some(sent) => match sent.link.connection().await {
                Ok(connection) => (sent.link.clone(), connection),
                Err(_) if !self.server.is_refusing() => return Ok(None),
                Err(error) => return Err(error),
            },
            None => self.server.connected().await?,
        };
        let args = match &self.sent {
            Some(sent) => sent.args.clone(),
            None => Arc::new(Args::new(
                &self.server,
                &self.request,
                link.inbox.clone(),
                self.notified,
            )),
        };
        if self.granted.is_none() {
            self.granted = Some(link.expect(args.clone()));
        }
        if self.duty.is_none() {
            self.duty = Some(self.server.begin_duty());
        }
        self.sent = Some(Sent {
            link: link.clone(),
            args: args.clone(),
        });
        args.gate.lock().await.carried = Some(connection.clone());
        match args.acquire(&connection, self.place.as_deref()).await {
            Ok(Reply::Granted(grant)) => Ok(Some(Answer::Granted(grant))),
            Ok(Reply::Busy) => Ok(Some(Answer::Busy)),
            Ok(Reply::Queued(place)) => {
                link.queued(args.owner, &place);
                tracing::debug!(lock = %args.names.lock, place, "queued");
                self.place = Some(place);
                let granted = self
                    .granted
                    .as_mut()
                    .expect("a queued owner expects its grant");
                let grant = granted.await;
                self.granted = None;
                match grant {
                    Ok(grant) => Ok(Some(Answer::Granted(grant))),
                    Err(_) if self.server.is_refusing() => Err(BackendError::ShutDown),
                    Err(_) => Ok(None),
                }
            }
            Ok(Reply::Late) => {
                // The server's clock was set forward, or the request lay about: a new connection knows its clock.
                connection.health.mark_demoted();
                clock::sleep_until(clock::now() + NOT_NOW_PAUSE).await;
                Ok(None)
            }
            Err(CallError::Broken(detail)) => {
                self.unsure = true;
                self.server.note(detail);
                Ok(None)
            }
            Err(CallError::NotNow(detail) | CallError::Demoted(detail)) => {
                self.server.note(detail);
                clock::sleep_until(clock::now() + NOT_NOW_PAUSE).await;
                Ok(None)
            }
            Err(CallError::Refused(error)) => {
                if !self.unsure && self.place.is_none() {
                    // Nothing was carried out: there is nothing to give back.
                    return self.settle(Err(error)).await;
                }
                Err(error)
            }
        }
    }

    /// Makes sure that a claim is young enough to start on: with less than two thirds left of its validity, it has to
    /// be renewed first. `None` if it is not held any more.
    async fn confirm(&self, grant: Grant) -> Result<Option<Grant>, BackendError> {
        let validity = grant.validity;
        let left = grant.remaining(clock::now()).unwrap_or(validity);
        if !grant.queued || left >= validity * 2 / 3 {
            return Ok(Some(grant));
        }
        let lease = self.request.lease.time;
        let renewed = self
            .server
            .renew(&self.request.name, grant.token, lease, "");
        Ok(match renewed.await? {
            Renewed::Until(until) => Some(Grant {
                valid_until: Some(until),
                validity: lease,
                ..grant
            }),
            Renewed::NotHeld => None,
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
                    Some(Answer::Granted(grant)) => {
                        if let Some(grant) = self.confirm(grant).await? {
                            return Ok(self.settle(Answer::Granted(grant)).await);
                        }
                    }
                    Some(Answer::Busy) => return Ok(self.settle(Answer::Busy).await),
                    None => {}
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
                sent.args.gate.lock().await.over = true;
                match sent.args.leave(&connection, false).await {
                    Ok(leaving) => return Ok(self.settle(leaving).await),
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
        if !self.settled
            && let Some(sent) = self.sent.take()
        {
            let server = self.server.clone();
            let duty = self.duty.take();
            engine::spawn(async move {
                clean_up(server, sent).await;
                drop(duty);
            });
        }
    }
}

/// Ends when nothing that was sent over a connection which is broken can be carried out any more: the server may not have
/// read all of it yet.
pub(super) async fn until_closed(server: &Arc<Server>, connection: &Connection, args: &Args) {
    let closing = async {
        loop {
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
    let Sent { link, args } = sent;
    link.forget(args.owner);
    let carried = {
        let mut gate = args.gate.lock().await;
        gate.over = true;
        gate.carried.clone()
    };
    let Some(connection) = carried else {
        return;
    };
    if !connection.health.is_broken() {
        let patience = clock::now() + SAME_CONNECTION_PATIENCE;
        match clock::timeout_at(patience, args.leave(&connection, true)).await {
            Some(Ok(_) | Err(CallError::Refused(BackendError::WrongLayout))) => return,
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
            args.leave(&home, true).await.ok()?;
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
