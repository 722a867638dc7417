//! Acquisitions with the strategy `notify`, the wait of Redisson's layout, which has no queue. A release publishes a
//! message, and one caller of each subscribed session tries to get the lock.

use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    error::HeldBy,
    lease::Grant,
};

use crate::{
    backend::redis::{
        protocol::layout::redisson_channel,
        queue::{
            attempt::{RedisAttempt, try_once},
            server::Server,
        },
        session::{Session, subscribers::Joined},
        transport::{call_error::CallError, connection::Connection, shard_channels::Subscribed},
    },
    background::TrackedTask,
    limits,
};

/// A caller that waits for a release.
struct Caller {
    server: Arc<Server>,
    session: Arc<Session>,
    topic: String,
    joined: Joined,
    task: TrackedTask,
}

impl Caller {
    async fn join(server: &Arc<Server>, request: &Request) -> Result<Self, BackendError> {
        let session = server.sessions.session(&request.name).await?;
        let topic = redisson_channel(&request.name);
        let joined = session.subscribers.join(&topic, &request.name);
        Ok(Self {
            server: server.clone(),
            session,
            topic,
            joined,
            task: server.track_acquisition(),
        })
    }

    /// Returns whether the caller's session has not ended, and is connected to the server that stores the lock.
    fn is_served(&self) -> bool {
        let name = &self.joined.callers.name;
        !self.session.has_ended() && self.server.sessions.serves(&self.session, name)
    }

    /// Waits until this caller has the turn to try to get the lock. Returns false if the caller's session ends, or if the
    /// lock moves to another server, meanwhile.
    async fn turn(&self) -> Result<bool, BackendError> {
        let Joined {
            callers,
            number,
            woken,
            ..
        } = &self.joined;
        loop {
            if self.server.is_shutting_down() || self.server.sessions.is_closed() {
                return Err(BackendError::ShutDown);
            }
            if callers.has_turn(*number) {
                return Ok(true);
            }
            if !self.is_served() {
                return Ok(false);
            }
            callers.watch();
            woken.notified().await;
        }
    }

    /// Ends this caller's try after the try has found the lock busy.
    fn end_try(&self) {
        let Joined {
            callers, number, ..
        } = &self.joined;
        callers.end_try(*number);
    }

    /// Subscribes to the channel on which Redisson announces releases. A session that was not subscribed before may
    /// have missed a release, so one of its callers tries again. If the server does not answer soon, the subscribing
    /// task continues after this method has returned.
    async fn listen(&self) -> Result<(), BackendError> {
        let patience = self.server.context.now() + limits::TRY_AGAIN;
        let connecting = self.session.connection();
        let connecting = self.server.context.timeout_at(patience, connecting);
        let Some(Ok(connection)) = connecting.await else {
            return Ok(()); // the caller tries again periodically, over another session or connection
        };
        let (server, session) = (self.server.clone(), self.session.clone());
        let (listening, topic) = (self.joined.listening.clone(), self.topic.clone());
        let callers = self.joined.callers.clone();
        let listens = self.server.context.spawn(async move {
            let changing = server.context.timeout_at(patience, listening.lock());
            let Some(mut listening) = changing.await else {
                return Ok(()); // another task subscribes slowly, and the caller subscribes again after its next try
            };
            if !session.subscribers.has_callers(&topic) {
                return Ok(()); // the last caller has left, so nobody would end the subscription
            }
            let subscribed = subscribe(&server, &session, &connection, &mut listening, &topic);
            let subscribed = subscribed.await;
            if !session.subscribers.has_callers(&topic) {
                // The last caller has left. The task that ends the subscription after the last caller may have given up
                // in the meantime, so this task ends the subscription.
                unsubscribe(&server, &connection, &mut listening, &topic).await;
                return Ok(());
            }
            match subscribed {
                Ok(true) => callers.wake(),
                Ok(false) => {}
                Err(CallError::Refused(error)) => return Err(error),
                Err(_) => {} // the caller subscribes again after its next try
            }
            Ok(())
        });
        match self.server.context.timeout_at(patience, listens).await {
            Some(Ok(listens)) => listens,
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Ends the session's subscription, after the last caller has left.
    async fn fall_silent(self) {
        let until = self.server.context.now() + limits::CLEANUP_PATIENCE;
        let silent = async {
            // A caller that joins in the meantime waits until this mutex is unlocked.
            let mut listening = self.joined.listening.lock().await;
            if !self.session.subscribers.is_deserted(&self.topic) {
                return;
            }
            // Unsubscribes even if no subscription is recorded, because a caller may have been dropped before it
            // recorded its subscription.
            if let Some(Ok(connection)) = self.session.connection().now_or_never() {
                unsubscribe(&self.server, &connection, &mut listening, &self.topic).await;
            }
            self.session.subscribers.forget(&self.topic);
        };
        // If the server does not answer, the subscription stays. A message to a session without callers does no harm.
        if self
            .server
            .context
            .timeout_at(until, silent)
            .await
            .is_none()
        {
            self.session.subscribers.forget(&self.topic);
        }
        drop(self.task);
    }
}

/// Subscribes a session to the channel on which Redisson announces releases. Returns true if the session was not
/// subscribed before. In a Redis Cluster with shard channels, subscribes to a shard channel, because Redisson uses a
/// shard channel there.
async fn subscribe(
    server: &Server,
    session: &Arc<Session>,
    connection: &Arc<Connection>,
    listening: &mut Weak<Connection>,
    topic: &str,
) -> Result<bool, CallError> {
    let sessions = &server.sessions;
    if let Some(node) = sessions.node_of(session).filter(|_| sessions.is_cluster()) {
        let waiting = Arc::downgrade(session);
        let wake = move |topic: &str| {
            if let Some(session) = waiting.upgrade() {
                session.subscribers.wake(topic);
            }
        };
        let channels = &connection.shard_channels;
        match channels
            .subscribe(node.connector(), &connection.address, topic, wake)
            .await?
        {
            Subscribed::Newly => return Ok(true),
            Subscribed::Already | Subscribed::Elsewhere => return Ok(false),
            Subscribed::Unsupported => {}
        }
    }
    if std::ptr::eq(listening.as_ptr(), Arc::as_ptr(connection)) {
        return Ok(false);
    }
    connection.listen(topic, true).await?;
    *listening = Arc::downgrade(connection);
    Ok(true)
}

/// Ends the subscription of a session to the channel on which Redisson announces releases.
async fn unsubscribe(
    server: &Server,
    connection: &Connection,
    listening: &mut Weak<Connection>,
    topic: &str,
) {
    *listening = Weak::new();
    let channels = &connection.shard_channels;
    if !channels.unsubscribe(&server.context, topic).await {
        let _ = connection.listen(topic, false).await;
    }
}

/// An acquisition that waits for a release.
pub(crate) struct NotifiedAttempt {
    server: Arc<Server>,
    request: Request,
    caller: Option<Caller>,
    /// The present try to get the lock, or `None` between two tries.
    trying: Option<RedisAttempt>,
    /// What the server reported about the holder when it refused the lock to the last try.
    held_by: Option<Box<HeldBy>>,
    /// Whether the server has answered a try.
    was_answered: bool,
}

impl NotifiedAttempt {
    pub(crate) fn new(server: Arc<Server>, request: Request) -> Self {
        Self {
            server,
            request,
            caller: None,
            trying: None,
            held_by: None,
            was_answered: false,
        }
    }

    /// Removes the caller from the list of waiting callers. If no other caller of the session waits for the same
    /// messages, ends the session's subscription in the background.
    fn end_waiting(&mut self) {
        if let Some(caller) = self.caller.take() {
            let Joined {
                callers, number, ..
            } = &caller.joined;
            if caller
                .session
                .subscribers
                .leave(&caller.topic, callers, *number)
            {
                self.server.context.spawn(caller.fall_silent());
            }
        }
    }
}

impl Attempt for NotifiedAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            let mut queued = false;
            loop {
                let has_moved = |caller: &Caller| !caller.is_served();
                if self.caller.as_ref().is_some_and(has_moved) {
                    self.end_waiting();
                }
                let (server, request) = (&self.server, &self.request);
                let caller = match &mut self.caller {
                    Some(caller) => caller,
                    none => none.insert(Caller::join(server, request).await?),
                };
                if !caller.turn().await? {
                    server.context.sleep(limits::RETRY_PAUSE).await;
                    continue;
                }
                let attempt = RedisAttempt::once(server.clone(), request);
                let answer = self.trying.insert(attempt).enter().await?;
                self.trying = None;
                if let Answer::Granted(grant) = answer {
                    self.end_waiting(); // the others need not wait until the caller takes the lock
                    return Ok(Answer::Granted(Grant { queued, ..grant }));
                }
                queued = true;
                self.was_answered = true;
                caller.listen().await?;
                caller.end_try();
            }
        })
    }

    /// Tries one last time to get the lock, because the lock may have become free without a message to this session.
    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        self.end_waiting();
        Box::pin(async move {
            if let Some(mut attempt) = self.trying.take()
                && let Leaving::Granted(grant) = attempt.leave().await?
            {
                return Ok(Leaving::Granted(grant));
            }
            let (left, held_by) = try_once(&self.server, &self.request).await?;
            self.held_by = held_by;
            Ok(left)
        })
    }

    fn was_answered(&self) -> bool {
        // One caller of a session tries for all of them.
        let of_session = |caller: &Caller| caller.joined.callers.was_answered(caller.joined.number);
        self.was_answered || self.caller.as_ref().is_some_and(of_session)
    }

    fn held_by(&self) -> Option<Box<HeldBy>> {
        self.held_by.clone()
    }
}

impl Drop for NotifiedAttempt {
    fn drop(&mut self) {
        self.end_waiting();
    }
}
