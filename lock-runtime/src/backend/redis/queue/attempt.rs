//! One acquisition on a Redis server, from its first request to its grant.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    fencing::FencingToken,
    lease::Grant,
    owner::OwnerId,
};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    backend::redis::{
        Server, TrackedTask,
        protocol::request::{AcquireRequest, Left, Reply, Sent},
        queue::{
            cleanup::{RETRY_PAUSE, give_up},
            cohort::Seat,
            waiters::OfferResult,
        },
        transport::connection::{CallError, Connection},
    },
    background::{self, clock::boot as clock},
};

/// An acquisition under way.
pub(crate) struct RedisAttempt {
    server: Arc<Server>,
    request: Request,
    /// Whether the process waits without a queue, and is to be woken.
    notified: bool,
    /// `None` until the first request.
    pub(crate) sent: Option<Sent>,
    /// The place of an owner that this caller had before, and comes back to.
    place: Option<u64>,
    /// How many offers it has missed.
    missed: u32,
    /// Where word of its turn arrives, from before the owner is queued.
    told: Option<oneshot::Receiver<OfferResult>>,
    /// The token of the turn that it was offered, and has neither taken nor missed yet.
    offer: Option<u64>,
    /// Whether a request has no answer, and may have been carried out.
    unsure: bool,
    pub(crate) settled: bool,
    /// From the first request on, shutting down waits until this attempt is settled or cleaned up.
    pub(crate) task: Option<TrackedTask>,
}

/// What a request came to.
enum Asked {
    Granted(Grant),
    /// Its turn is offered, under this token.
    Offered(u64),
    Busy,
    /// It has to be sent again.
    Again,
    /// The engine has given up what this owner had, because the caller did not come back for it.
    Revoked,
}

impl RedisAttempt {
    pub(crate) fn new(server: Arc<Server>, request: Request) -> Self {
        Self {
            server,
            request,
            notified: false,
            sent: None,
            place: None,
            missed: 0,
            told: None,
            offer: None,
            unsure: false,
            settled: false,
            task: None,
        }
    }

    /// An attempt that tries once. If the lock is busy, a try in the native layout leaves a marker in the queue: the
    /// session's session_id gets a message when the lock is free and nobody queues.
    pub(crate) fn notified(server: Arc<Server>, request: Request) -> Self {
        let once = Request {
            wait: Duration::ZERO,
            ..request
        };
        let mut attempt = Self::new(server, once);
        attempt.notified = true;
        attempt
    }

    /// The caller has what it asked for, or nothing more to give back. No await may come between this and the answer.
    pub(crate) fn settle(&mut self) {
        if let Some(sent) = &self.sent {
            // Otherwise it is not there: it is taken out before its answer is read.
            if !sent.args.is_answered() {
                sent.session.unanswered.remove(sent.args.owner);
            }
            sent.session.waiters.forget(&sent.args);
        }
        self.settled = true;
    }

    /// Begins again as another owner, who takes the place of the one before: nothing that is still under way for that
    /// one lets this one in. What that one may still have is given back in the background.
    fn begin_again(&mut self) {
        let offer = self.last_offer();
        if let Some(old) = self.sent.take() {
            self.place = old.args.place().or(self.place);
            old.session.unanswered.remove(old.args.owner);
            old.session.waiters.forget(&old.args);
            if !old.args.is_revoked() {
                let (server, task) = (self.server.clone(), self.server.track_cleanup());
                background::spawn(async move {
                    give_up(server, old, offer).await;
                    drop(task);
                });
            }
        }
        self.request.owner = OwnerId::from_u128(Uuid::new_v4().as_u128());
        self.unsure = false;
    }

    /// Where the request goes: the session of the one before, unless that has ended.
    async fn way(&mut self) -> Result<Option<(Sent, Arc<Connection>)>, BackendError> {
        if self
            .sent
            .as_ref()
            .is_some_and(|sent| sent.session.has_ended())
        {
            // The runtime of its session has ended: the caller takes its place along to another session_id.
            self.begin_again();
        }
        Ok(match &self.sent {
            Some(sent) => match sent.session.connection().await {
                Ok(connection) => Some((sent.clone(), connection)),
                Err(_) if !self.server.is_shutting_down() => None,
                Err(error) => return Err(error),
            },
            None => {
                let (session, connection) = self.server.connected().await?;
                let session_id = session.session_id.clone();
                let mut args =
                    AcquireRequest::new(&self.server, &self.request, session_id, self.notified);
                args.missed = self.missed;
                args.set_place(self.place.unwrap_or_default());
                let args = Arc::new(args);
                Some((Sent { session, args }, connection))
            }
        })
    }

    /// One request, alone or together with those of others, and what came of it.
    async fn request(&mut self) -> Result<Asked, BackendError> {
        // Boxed: it is gone while the caller waits for its turn.
        let Some((sent, connection)) = Box::pin(self.way()).await? else {
            return Ok(Asked::Again);
        };
        let Sent { session, args } = &sent;
        if self.task.is_none() {
            self.task = Some(self.server.track_acquisition());
        }
        self.sent = Some(sent.clone());
        if self.told.is_none() && !self.request.wait.is_zero() {
            let (told, alone) = session.waiters.join(args);
            self.told = Some(told);
            session.watch();
            if !alone {
                session.ask(&self.server, &args.names.lock);
                return self.turn().await;
            }
        }
        if !args.ask() {
            return Ok(Asked::Revoked);
        }
        session.unanswered.insert(args);
        args.carry(&connection);
        let reply = args.acquire(&connection).await;
        if let Ok(Reply::Granted(_) | Reply::Busy) = reply {
            // No request of this owner is under way from here on.
            args.end().await;
            // While it is still known as unanswered, so that nobody who describes the grant offers it in between.
            session.waiters.forget(args);
        }
        if reply.is_ok() {
            session.unanswered.remove(args.owner);
            if !args.answered() {
                return Ok(Asked::Revoked);
            }
        }
        match reply {
            Ok(Reply::Granted(grant)) => {
                self.settle();
                Ok(Asked::Granted(grant))
            }
            Ok(Reply::Busy) => {
                self.settle();
                Ok(Asked::Busy)
            }
            Ok(Reply::Held(grant)) if self.told.is_none() => {
                self.settle();
                Ok(Asked::Granted(grant.sole()))
            }
            Ok(Reply::Held(grant)) => {
                self.server.take_up(session, &args.names.lock, &grant);
                self.turn().await
            }
            Ok(Reply::Queued { place, holder_ends }) => {
                session.queued(&args.names.lock, &[(&**args, place)], holder_ends);
                tracing::debug!(server = %self.server.address(), key = %self.server.key(&args.names.lock), place, "queued");
                self.turn().await
            }
            Ok(Reply::Late) => {
                // The server's clock was set forward, or the request lay about: a new connection knows its clock.
                connection.health.mark_demoted();
                clock::sleep_until(clock::now() + RETRY_PAUSE).await;
                Ok(Asked::Again)
            }
            Err(CallError::Broken(detail)) => {
                self.unsure = true;
                self.server.note(detail);
                Ok(Asked::Again)
            }
            Err(CallError::NotReady(detail) | CallError::Demoted(detail)) => {
                self.server.note(detail);
                clock::sleep_until(clock::now() + RETRY_PAUSE).await;
                Ok(Asked::Again)
            }
            Err(CallError::Refused(error)) => {
                if !self.unsure {
                    // Nothing was carried out: there is nothing to give back.
                    args.end().await;
                    self.settle();
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
            Ok(Ok(token)) => {
                self.offer = Some(token);
                Ok(Asked::Offered(token))
            }
            Ok(Err(error)) => Err(error),
            Err(_) if self.server.is_shutting_down() => Err(BackendError::ShutDown),
            Err(_) => Ok(Asked::Again),
        }
    }

    /// Takes the turn that it was offered, if the offer still stands: decided at this poll, and with nothing between the
    /// decision and the answer. The engine renews an offer of which too little is left, so that the answer does not depend
    /// on when this is polled.
    async fn take_turn(&mut self, token: u64) -> Result<Option<Grant>, BackendError> {
        let sent = self.sent.as_ref().expect("what is offered was asked for");
        // No request of this owner is under way from here on.
        sent.args.end().await;
        loop {
            let name = &self.request.name;
            match self.server.cohorts.enter(name, token) {
                Seat::Inside(grant) => {
                    self.offer = None;
                    self.settle();
                    return Ok(Some(grant));
                }
                Seat::Missed => return Ok(None),
                Seat::Unconfirmed => {
                    let lease = self.request.lease.time;
                    let confirming = self.server.confirm_offer(name.clone(), token, lease);
                    confirming.await?;
                }
            }
        }
    }

    /// The turn that it is offered by now, if there is one.
    fn last_offer(&mut self) -> Option<u64> {
        let told = self.told.take();
        self.offer.take().or_else(|| {
            let mut told = told?;
            told.close();
            told.try_recv().ok()?.ok()
        })
    }

    /// Takes the turn that it is offered by now, when it leaves.
    async fn take_last_turn(&mut self) -> Result<Option<Grant>, BackendError> {
        self.offer = self.last_offer();
        match self.offer {
            Some(token) => self.take_turn(token).await,
            None => Ok(None),
        }
    }
}

impl Attempt for RedisAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            loop {
                if self.server.is_shutting_down() {
                    return Err(BackendError::ShutDown);
                }
                match self.request().await? {
                    Asked::Granted(grant) => return Ok(Answer::Granted(grant)),
                    Asked::Offered(token) => {
                        // Boxed: a caller that waits does not need it.
                        if let Some(grant) = Box::pin(self.take_turn(token)).await? {
                            return Ok(Answer::Granted(grant));
                        }
                        self.offer = None;
                        self.missed += 1;
                        self.begin_again();
                    }
                    Asked::Busy => return Ok(Answer::Busy),
                    Asked::Again => {}
                    Asked::Revoked => {
                        self.missed += 1;
                        self.begin_again();
                    }
                }
            }
        })
    }

    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        Box::pin(async move {
            loop {
                if self.offer.is_some()
                    && let Some(grant) = self.take_last_turn().await?
                {
                    return Ok(Leaving::Granted(grant));
                }
                let Some(sent) = self.sent.clone() else {
                    // Nothing was sent. Where the server can be reached, the caller was late.
                    self.server.connected().await?;
                    return Ok(Leaving::Left);
                };
                let connection = sent.session.connection().await?;
                let args = &sent.args;
                args.end().await;
                // What an earlier request or this one is granted is the caller's, if it comes back for it.
                if !args.ask() {
                    return Ok(Leaving::Left);
                }
                sent.session.unanswered.insert(args);
                args.carry(&connection);
                let left = args.leave(&connection, false).await;
                if let Ok(Left::Granted(_)) = left {
                    sent.session.waiters.forget(args);
                }
                if left.is_ok() {
                    sent.session.unanswered.remove(args.owner);
                    if !args.answered() {
                        return Ok(Leaving::Left);
                    }
                }
                match left {
                    Ok(Left::Granted(grant)) => {
                        self.settle();
                        return Ok(Leaving::Granted(grant));
                    }
                    Ok(Left::Out) => {
                        // What it may have been told of is gone.
                        if let Some(token) = self.last_offer() {
                            let token = FencingToken::new(token);
                            self.server.lose(&args.names.lock, token);
                        }
                        self.settle();
                        return Ok(Leaving::Left);
                    }
                    Ok(Left::Held(grant)) => {
                        self.server.take_up(&sent.session, &args.names.lock, &grant);
                        return Ok(match self.take_last_turn().await? {
                            Some(grant) => Leaving::Granted(grant),
                            // Its turn is still to come, or has passed: dropped, it gives back what it has of it.
                            None => Leaving::Left,
                        });
                    }
                    Err(CallError::Refused(error)) => return Err(error),
                    Err(CallError::Broken(detail)) => self.server.note(detail),
                    Err(CallError::NotReady(detail) | CallError::Demoted(detail)) => {
                        self.server.note(detail);
                        clock::sleep_until(clock::now() + RETRY_PAUSE).await;
                    }
                }
            }
        })
    }
}

impl Drop for RedisAttempt {
    fn drop(&mut self) {
        let offer = self.last_offer();
        if !self.settled
            && let Some(sent) = self.sent.take()
        {
            sent.session.unanswered.remove(sent.args.owner);
            if sent.args.is_revoked() {
                return sent.session.waiters.forget(&sent.args);
            }
            let server = self.server.clone();
            let task = self.task.take();
            background::spawn(async move {
                give_up(server, sent, offer).await;
                drop(task);
            });
        }
    }
}
