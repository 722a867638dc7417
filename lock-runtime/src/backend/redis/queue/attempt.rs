//! One acquisition on a Redis server, from its first request to its grant. The [core](super::super::core) chooses each step,
//! and this file carries out the steps.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    error::HeldBy,
    lease::Grant,
};
use tokio::sync::oneshot;

use crate::{
    backend::redis::{
        core::{
            Ended, Stored,
            acquisition::{Acquisition, Event, Step},
        },
        protocol::request::{Left, Reply},
        queue::{
            cleanup::{Sent, give_up},
            grants,
            server::{Retry, Server},
        },
        session::shared_core::Caller,
        transport::connection::Connection,
    },
    background::{Polled, TrackedTask},
    events::TARGET,
    limits,
};

/// An acquisition on a Redis server that has not ended yet.
pub(crate) struct RedisAttempt {
    server: Arc<Server>,
    request: Request,
    state: Acquisition,
    /// The data that the server stores about the current owner name, while the core does not have them. The next owner name
    /// takes over the place.
    stored: Stored,
    /// The newest request under the current owner name, and the session that sends this request. `None` before the
    /// owner's first request.
    pub(crate) sent: Option<Sent>,
    /// Completes when this caller's turn comes. The receiver is created before the caller is queued.
    turn: Option<oneshot::Receiver<Ended>>,
    /// While this task exists, a shutdown of the client waits for this attempt and its clean-up. `None` before the
    /// first request.
    pub(crate) task: Option<TrackedTask>,
    /// Whether it is possible that the server has granted the lock to an earlier owner name of this acquisition. Set to
    /// false when a request is sent under the current owner name.
    may_hold: bool,
    /// Completes when the clean-up has removed the previous owner name from the server, with the place of this name. Set only
    /// if a request under the previous owner name is possibly not answered.
    cleaning: Option<oneshot::Receiver<u64>>,
    /// What the server reported about the holder when it refused the lock to the last try under another owner name.
    held_by: Option<Box<HeldBy>>,
    /// The runtime that has polled the caller.
    polled: Option<Polled>,
}

impl RedisAttempt {
    /// Creates an attempt for the calling task.
    pub(crate) fn new(server: Arc<Server>, request: Request) -> Self {
        Self {
            polled: server.context.polled(),
            server,
            request,
            state: Acquisition::new(),
            stored: Stored::default(),
            sent: None,
            turn: None,
            task: None,
            may_hold: false,
            cleaning: None,
            held_by: None,
        }
    }

    /// Creates an attempt that requests the lock once, and does not queue the caller.
    pub(crate) fn once(server: Arc<Server>, request: &Request) -> Self {
        let once = Request {
            // Each try has a new owner, so that late answers to earlier requests, and their clean-up, do not affect it.
            owner: server.context.new_owner(),
            wait: Duration::ZERO,
            ..request.clone()
        };
        Self::new(server, once)
    }

    /// Applies an answer that settles the attempt. When a settled attempt is dropped, the engine has nothing to give
    /// back to the server. The calling code must not await anything between reading the answer and calling this method.
    pub(crate) fn settle(&mut self, event: Event) -> Step {
        self.stop_waiting();
        self.state.on(event)
    }

    /// Removes the current owner name from the callers that wait.
    fn stop_waiting(&mut self) {
        if let Some(Sent { session, request }) = &self.sent {
            let (name, owner) = (&request.names.lock, request.owner);
            let stored = session.lines(|lines, link| lines.leave_list(link, name, owner));
            self.stored = stored.unwrap_or(self.stored);
        }
    }

    /// Returns the place in the queue, if it is known.
    fn place(&self) -> Option<u64> {
        let of_waiting = self.sent.as_ref().and_then(|Sent { session, request }| {
            let (name, owner) = (&request.names.lock, request.owner);
            session.lines(|lines, link| lines.stored(link, name, owner))
        });
        of_waiting.unwrap_or(self.stored).place
    }

    /// Continues under a new owner name, which takes over the place of the old owner name in the queue. A late answer
    /// to a request under the old name has no effect on the new name. A background task gives back the turn of the old name,
    /// or removes the old name from the queue.
    pub(crate) fn start_over(&mut self) {
        self.turn = None;
        self.stop_waiting();
        if let Some(old) = self.sent.take()
            && !self.state.is_not_carried_out()
        {
            let (server, task) = (self.server.clone(), self.server.track_cleanup());
            let is_unsure = !old.request.is_settled();
            self.may_hold = is_unsure;
            let (gone, is_gone) = oneshot::channel();
            self.server.context.spawn(async move {
                give_up(server, old, gone).await;
                drop(task);
            });
            self.cleaning = is_unsure.then_some(is_gone);
        }
        self.state.start_over();
        self.stored.granted = 0;
        self.request.owner = self.server.context.new_owner();
    }

    /// Waits until the clean-up has removed the previous owner name from the server. Before the removal, an unanswered
    /// request can still get the lock for the previous name. A request under the new name would then find the lock
    /// taken. If the unanswered request got a place in the queue, the new owner name takes over this place.
    pub(crate) async fn cleaned(&mut self) {
        if let Some(is_gone) = &mut self.cleaning {
            if let Ok(place) = is_gone.await {
                self.stored.place.get_or_insert(place);
            }
            self.cleaning = None;
        }
    }

    /// Returns whether the session of the newest request has ended, or whether the lock has moved to another server.
    fn needs_session(&self) -> bool {
        let sessions = &self.server.sessions;
        let is_useless = |sent: &Sent| {
            sent.session.has_ended() || !sessions.serves(&sent.session, &self.request.name)
        };
        self.sent.as_ref().is_some_and(is_useless)
    }

    /// Returns the session, the request and the connection for the next try. Uses the session of the previous try,
    /// unless that session has ended, or no longer serves the lock. Returns `None` if the session ends, or stops
    /// serving the lock, while this method waits for a connection.
    async fn route(&mut self) -> Result<Option<(Sent, Arc<Connection>)>, BackendError> {
        if self.needs_session() && self.state.on(Event::Moved) == Step::StartOver {
            self.start_over();
        }
        self.cleaned().await;
        if let Some(sent) = &self.sent {
            let sessions = &self.server.sessions;
            return match sessions.connection(&sent.session, &self.request.name).await {
                Ok(connection) => Ok(Some((sent.clone(), connection))),
                Err(_) if !self.server.is_shutting_down() => Ok(None),
                Err(error) => Err(error),
            };
        }
        let (node, connection) = self.server.sessions.connected(&self.request.name).await?;
        let session = node.session().clone();
        let request = Arc::new(self.server.acquire_request(&self.request, &session));
        Ok(Some((Sent { session, request }, connection)))
    }

    /// Carries out a step, and returns the next step. The returned future can be dropped at any await without harm.
    async fn carry_out(&mut self, step: Step) -> Result<Step, BackendError> {
        match step {
            Step::AwaitTurn => return self.await_turn().await,
            Step::StartOver => self.start_over(),
            Step::Miss => {
                self.start_over();
                return Ok(Step::Return(Answer::Missed));
            }
            Step::AskLater => self.server.context.sleep(limits::RETRY_PAUSE).await,
            Step::Ask | Step::AskOnce | Step::Nothing | Step::Return(_) | Step::Fail(_) => {}
        }
        self.ask().await
    }

    /// Sends one request, alone or in a batch with the requests of other callers, and returns the next step.
    async fn ask(&mut self) -> Result<Step, BackendError> {
        // The future is boxed, so that the caller's future stays small while the caller waits for its turn.
        let Some((sent, connection)) = Box::pin(self.route()).await? else {
            return Ok(Step::Ask);
        };
        let Sent { session, request } = &sent;
        if self.task.is_none() {
            self.task = Some(self.server.track_acquisition());
        }
        let place = match self.turn {
            Some(_) => self.place(),
            None => {
                self.stop_waiting();
                self.stored.place
            }
        };
        self.sent = Some(sent.clone());
        self.may_hold = false;
        if self.turn.is_none() && !self.request.wait.is_zero() {
            let (told, turn) = oneshot::channel();
            let polled = self.polled.clone();
            let caller = Caller { polled, told };
            let (name, owner, stored) = (&request.names.lock, request.owner, self.stored);
            let alone = session.lines(|lines, link| {
                lines.join(link, name, owner, stored, request.clone(), caller)
            });
            self.turn = Some(turn);
            session.watch();
            if !alone {
                session.enqueue(&request.names.lock);
                return Ok(self.state.on(Event::Joins));
            }
        }
        request.ask();
        self.state.on(Event::Asks);
        request.carry(&connection);
        let reply = request.acquire(&connection, place).await;
        if let Ok(Reply::Granted(_) | Reply::Busy) = reply {
            // The answer to a request of the session can describe the same grant. The caller no longer waits, so it does not
            // get this grant again.
            self.stop_waiting();
            // When `end` returns, all earlier requests under this owner name have ended.
            request.end().await;
        }
        if reply.is_ok() {
            request.answered();
        }
        Ok(match reply {
            Ok(Reply::Granted(grant)) => self.settle(Event::Granted(grant)),
            Ok(Reply::Busy) => self.settle(Event::Busy),
            Ok(Reply::Held { grant, .. }) if self.turn.is_none() => {
                self.settle(Event::Granted(grant.sole()))
            }
            Ok(Reply::Held { grant, place }) => {
                let (name, owner) = (&request.names.lock, request.owner);
                if let (Some(place), None) = (place, self.place()) {
                    session.lines(|lines, link| lines.queued(link, name, &[(owner, place)]));
                }
                grants::take_up(&self.server, session, &request.names.lock, &grant);
                self.state.on(Event::Queued)
            }
            Ok(Reply::Queued { place, holder_ends }) => {
                let name = &request.names.lock;
                session.queued(name, &[(request.owner, place)], holder_ends);
                tracing::debug!(target: TARGET, server = %self.server.address(), key = %self.server.key(&request.names.lock), place, "queued");
                self.state.on(Event::Queued)
            }
            // Without `turn`, the caller is not queued. The session sends requests only for queued callers, so this
            // caller has no other unanswered request.
            Err(error) if error.is_not_carried_out() && self.turn.is_none() => {
                self.server.note_failure(error)?;
                self.state.on(Event::NotCarriedOut)
            }
            Err(error) => match self.server.note_failure(error) {
                Ok(Retry::Later) => self.state.on(Event::NotReady),
                Ok(Retry::Now) => self.state.on(Event::Broken),
                Err(error) => {
                    // The refusal is final if the server has refused every request under this owner name. The session may
                    // still be sending a request of this caller. Once that request has ended, too, there is nothing to
                    // give back.
                    if self.state.is_refusal_final() {
                        request.end().await;
                        self.settle(Event::Refused(error))
                    } else {
                        self.state.on(Event::Refused(error))
                    }
                }
            },
        })
    }

    /// Awaits the caller's turn.
    async fn await_turn(&mut self) -> Result<Step, BackendError> {
        let turn = self
            .turn
            .as_mut()
            .expect("a waiting caller has a receiver for its turn");
        let ended = turn.await.unwrap_or(Ended::Dismissed);
        self.turn = None;
        match ended {
            Ended::Turn => {
                let taken = Box::pin(self.take_turn()).await;
                Ok(taken.unwrap_or_else(|| self.state.on(Event::Missed)))
            }
            Ended::Failed(error) => Ok(self.state.on(Event::Refused(error))),
            Ended::Dismissed if self.server.is_shutting_down() => Err(BackendError::ShutDown),
            Ended::Dismissed => Ok(self.state.on(Event::Dismissed)),
        }
    }

    /// Takes the turn that the caller has. Returns `None` if it has none.
    async fn take_turn(&mut self) -> Option<Step> {
        let request = &self.sent.as_ref()?.request;
        // When `end` returns, all earlier requests under this owner name have ended.
        request.end().await;
        let (name, now) = (&request.names.lock, self.server.now());
        let core = &self.server.core;
        let grant = core.with(|core| core.grant_of(name, request.owner, now))?;
        Some(self.settle(Event::Granted(grant)))
    }

    /// Takes the turn of a caller whose wait is over, and returns its grant. Returns `None` if it has none.
    async fn take_last_turn(&mut self) -> Option<Grant> {
        match self.take_turn().await? {
            Step::Return(Answer::Granted(grant)) => Some(grant),
            _ => None,
        }
    }

    async fn try_once(&mut self) -> Result<Leaving, BackendError> {
        let (left, held_by) = try_once(&self.server, &self.request).await?;
        self.held_by = held_by;
        Ok(left)
    }

    /// Leaves the queue with a request over the session in which the caller waits. Returns `None` if the lock has moved
    /// to another server.
    async fn leave_queue(&mut self) -> Result<Option<Leaving>, BackendError> {
        loop {
            if let Some(grant) = self.take_last_turn().await {
                return Ok(Some(Leaving::Granted(grant)));
            }
            let Some(Sent { session, request }) = self.sent.clone() else {
                // No request was sent to the server, so nobody knows yet whether the lock is free.
                return self.try_once().await.map(Some);
            };
            let sessions = &self.server.sessions;
            let connection = match sessions.connection(&session, &self.request.name).await {
                Ok(connection) => connection,
                Err(error) if self.server.is_shutting_down() => return Err(error),
                Err(_) => return Ok(None),
            };
            request.end().await;
            if request.carried_by().is_none() {
                // The session has not sent the caller's request, so nobody knows yet whether the lock is free.
                self.settle(Event::Unsent);
                return self.try_once().await.map(Some);
            }
            // The server can grant the lock in its answer to the request to leave, or in its answer to an earlier
            // request. The caller then gets the lock if it reads that answer in time.
            request.ask();
            request.carry(&connection);
            let left = request.leave(&connection, false).await;
            if let Ok(Left::Granted(_)) = left {
                self.stop_waiting();
            }
            if left.is_ok() {
                request.answered();
            }
            match left {
                Ok(Left::Granted(grant)) => {
                    self.settle(Event::Granted(grant));
                    return Ok(Some(Leaving::Granted(grant)));
                }
                Ok(Left::Out { place }) => {
                    // The server has neither a place nor a grant for the caller. If the caller has a turn, the server has
                    // therefore lost the grant of that turn.
                    self.stop_waiting();
                    let (name, core) = (&request.names.lock, &self.server.core);
                    if let Some((token, _)) = core.with(|core| core.turn_of(name, request.owner)) {
                        grants::lose(&self.server, name, token);
                    }
                    return Ok(Some(
                        match self.settle(Event::Left {
                            was_queued: place.is_some(),
                        }) {
                            Step::AskOnce => self.try_once().await?,
                            _ => Leaving::Left,
                        },
                    ));
                }
                Ok(Left::Held(grant)) if self.request.wait.is_zero() => {
                    // The attempt has not joined the waiters of its session, so it gets no turn. If too little
                    // of the lease is left, the lease is confirmed before the body begins.
                    let grant = Grant {
                        validity: self.request.lease.time,
                        ..grant.sole()
                    };
                    self.settle(Event::Granted(grant));
                    return Ok(Some(Leaving::Granted(grant)));
                }
                Ok(Left::Held(grant)) => {
                    grants::take_up(&self.server, &session, &request.names.lock, &grant);
                    return Ok(Some(match self.take_last_turn().await {
                        Some(grant) => Leaving::Granted(grant),
                        // The caller does not get the lock, because its turn is still to come or has passed. When the
                        // attempt is dropped, its clean-up removes the owner name from the cohort or from the server.
                        None => Leaving::Left,
                    }));
                }
                Err(error) => {
                    self.server.recover(error).await?;
                }
            }
        }
    }
}

/// Tries once to take a lock for which the caller has waited. If the lock is held, also returns what the server reported
/// about the holder.
pub(crate) async fn try_once(
    server: &Arc<Server>,
    request: &Request,
) -> Result<(Leaving, Option<Box<HeldBy>>), BackendError> {
    let mut attempt = RedisAttempt::once(server.clone(), request);
    Ok(match attempt.enter().await? {
        Answer::Granted(grant) => {
            let grant = Grant {
                queued: true,
                ..grant
            };
            (Leaving::Granted(grant), None)
        }
        Answer::Busy | Answer::Missed => (Leaving::Left, attempt.held_by()),
    })
}

impl Attempt for RedisAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            let mut step = Step::Ask;
            loop {
                step = match step {
                    Step::Return(answer) => {
                        self.task = self.task.take().filter(|_| answer == Answer::Missed);
                        return Ok(answer);
                    }
                    Step::Fail(error) => return Err(error),
                    _ if self.server.is_shutting_down() => return Err(BackendError::ShutDown),
                    step => self.carry_out(step).await?,
                };
            }
        })
    }

    fn again(&mut self) {
        self.polled = self.server.context.polled();
        if self.state.is_settled() {
            self.sent = None;
            self.state.again();
            self.stored.granted = 0;
            self.turn = None;
            self.request.owner = self.server.context.new_owner();
        }
    }

    /// Leaves the queue. If the lock has moved to another server, a task of the engine removes the owner name from the
    /// queue, and the caller tries once more to get the lock, under a new owner name.
    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        Box::pin(async move {
            if !self.may_hold {
                if let Some(left) = self.leave_queue().await? {
                    return Ok(left);
                }
                if self.state.on(Event::Moved) == Step::StartOver {
                    self.start_over();
                }
            }
            self.cleaned().await;
            self.try_once().await
        })
    }

    fn was_answered(&self) -> bool {
        // A place comes from the server. An answer that grants the lock ends the attempt.
        self.place().is_some() || self.held_by().is_some()
    }

    fn held_by(&self) -> Option<Box<HeldBy>> {
        let sent = self.sent.as_ref();
        let of_request = || sent.and_then(|sent| sent.request.held_by());
        self.held_by.clone().or_else(of_request)
    }
}

impl Drop for RedisAttempt {
    fn drop(&mut self) {
        if self.state.is_settled() {
            return;
        }
        self.stop_waiting();
        if let Some(sent) = self.sent.take() {
            let server = self.server.clone();
            let task = self.task.take();
            let (gone, _) = oneshot::channel();
            self.server.context.spawn(async move {
                give_up(server, sent, gone).await;
                drop(task);
            });
        }
    }
}
