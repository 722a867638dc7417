//! Waiting without a queue: a release wakes the processes that wait so, and these try again. In the native layout that
//! is a release for which nobody queues.
//!
//! In one process those who wait for one lock take turns at trying, so that a release costs a process one try, however
//! many wait in it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    key::LockName,
    layout::Layout,
    lease::{Grant, Moment},
};
use tokio::sync::{Notify, Semaphore};

use super::{
    Arg, Duty, Server,
    attempt::RedisAttempt,
    connection::{CallError, Connection},
    layout::redisson_channel,
    link::Link,
    script,
};
use crate::{clock::boot as clock, engine, sync::lock};

/// Between two tries where nobody releases: the holder is gone, or the word of its release was lost.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// How long it may take to tell the server that nobody waits any more.
const FORGET_PATIENCE: Duration = Duration::from_secs(2);

/// Those who wait for one lock on one link.
#[derive(Debug)]
struct Callers {
    name: LockName,
    turn: Arc<Semaphore>,
    woken: Notify,
    tries: Mutex<Tries>,
}

/// What became of the tries so far.
#[derive(Debug, Default)]
struct Tries {
    answered: bool,
    /// When the first one began since the newest answer.
    unanswered: Option<Moment>,
}

impl Callers {
    fn begin_try(&self) {
        // The one before may have been given up, as unanswered as this.
        lock(&self.tries).unanswered.get_or_insert(clock::now());
    }

    fn end_try(&self) {
        *lock(&self.tries) = Tries {
            answered: true,
            unanswered: None,
        };
    }

    /// Whether the server says that the lock is busy, and not nothing at all. A try that has just begun says nothing.
    fn is_answered(&self) -> bool {
        let tries = lock(&self.tries);
        let recent = |began| clock::now().since(began) < TRY_AGAIN;
        tries.answered && tries.unanswered.is_none_or(recent)
    }
}

/// All who wait for what is said under one name: the lock's own, or its channel.
#[derive(Debug, Default)]
struct Topic {
    /// By lock; there may be two with one channel.
    callers: Vec<(Arc<Callers>, usize)>,
    /// The connection that listens to the channel, if there is one. Held while that changes.
    listening: Listening,
}

/// All who wait without a queue on one link, by what a release says.
#[derive(Debug, Default)]
pub(super) struct Notified(Mutex<HashMap<String, Topic>>);

type Listening = Arc<tokio::sync::Mutex<Weak<Connection>>>;

impl Notified {
    /// One caller more.
    fn join(&self, topic: &str, name: &LockName) -> (Arc<Callers>, Listening) {
        let mut topics = lock(&self.0);
        let topic = topics.entry(topic.to_owned()).or_default();
        let listening = topic.listening.clone();
        let known = topic.callers.iter_mut();
        if let Some((callers, count)) = known.into_iter().find(|(one, _)| one.name == *name) {
            *count += 1;
            return (callers.clone(), listening);
        }
        let callers = Arc::new(Callers {
            name: name.clone(),
            turn: Arc::new(Semaphore::new(1)),
            woken: Notify::new(),
            tries: Mutex::default(),
        });
        topic.callers.push((callers.clone(), 1));
        (callers, listening)
    }

    /// One caller less; true if it was the last one of the topic.
    fn leave(&self, topic: &str, name: &LockName) -> bool {
        let mut topics = lock(&self.0);
        let Some(topic) = topics.get_mut(topic) else {
            return false;
        };
        for (callers, count) in &mut topic.callers {
            *count -= usize::from(callers.name == *name);
        }
        topic.callers.retain(|(_, count)| *count > 0);
        topic.callers.is_empty()
    }

    fn is_deserted(&self, topic: &str) -> bool {
        lock(&self.0)
            .get(topic)
            .is_some_and(|topic| topic.callers.is_empty())
    }

    /// Knows a topic no more, unless somebody has joined.
    fn forget(&self, topic: &str) {
        let mut topics = lock(&self.0);
        if topics
            .get(topic)
            .is_some_and(|topic| topic.callers.is_empty())
        {
            topics.remove(topic);
        }
    }

    /// Lets one caller try, for the lock is free.
    pub(super) fn wake(&self, topic: &str) {
        if let Some(topic) = lock(&self.0).get(topic) {
            for (callers, _) in &topic.callers {
                callers.woken.notify_one();
            }
        }
    }

    /// Lets all of them look what has become of the client.
    pub(super) fn wake_all(&self) {
        for topic in lock(&self.0).values() {
            for (callers, _) in &topic.callers {
                callers.woken.notify_one();
            }
        }
    }
}

/// How the server knows an inbox that is to be woken.
pub(super) fn marker(inbox: &str) -> String {
    format!("notify|{inbox}")
}

/// One caller among those of its link.
struct Caller {
    server: Arc<Server>,
    link: Arc<Link>,
    topic: String,
    callers: Arc<Callers>,
    listening: Listening,
    duty: Duty,
}

impl Caller {
    fn join(server: &Arc<Server>, request: &Request) -> Self {
        let link = server.link();
        let topic = match server.layout {
            Layout::Native => request.name.to_string(),
            Layout::Redisson => redisson_channel(&request.name),
        };
        let (callers, listening) = link.notified.join(&topic, &request.name);
        Self {
            server: server.clone(),
            link,
            topic,
            callers,
            listening,
            duty: server.begin_duty(),
        }
    }

    /// Hears of releases from now on. True if it did not before: of one in between it has not heard.
    async fn listen(&self) -> Result<bool, BackendError> {
        if self.server.layout == Layout::Native {
            return Ok(false); // the try that was in vain has left a marker
        }
        let Ok(connection) = self.link.connection().await else {
            return Ok(false); // it tries now and then, over another link
        };
        let mut listening = self.listening.lock().await;
        if std::ptr::eq(listening.as_ptr(), Arc::as_ptr(&connection)) {
            return Ok(false);
        }
        match connection.listen(&self.topic, true).await {
            Ok(()) => {
                *listening = Arc::downgrade(&connection);
                Ok(true)
            }
            Err(CallError::Refused(error)) => Err(error),
            Err(_) => Ok(false), // listens again after the next try
        }
    }

    /// Takes along what the callers left on the server, for this was the last of them.
    async fn fall_silent(self) {
        let until = clock::now() + FORGET_PATIENCE;
        let silent = async {
            // Whoever joins meanwhile begins after that.
            let mut listening = self.listening.lock().await;
            if !self.link.notified.is_deserted(&self.topic) {
                return;
            }
            if self.server.layout == Layout::Redisson {
                *listening = Weak::new();
                // Also where a caller was dropped before it knew that it listens.
                if let Some(Ok(connection)) = self.link.connection().now_or_never() {
                    let _ = connection.listen(&self.topic, false).await;
                }
            } else {
                let names = self.server.names(&self.callers.name);
                let marker = marker(&self.link.inbox);
                let (keys, args) = ([names.companion()], [Arg::Text(&marker)]);
                let _ = self.server.run(&script::FORGET, &keys, &args).await;
            }
            self.link.notified.forget(&self.topic);
        };
        // Unanswered, the marker ends with the queue, in two seconds; and what is heard in vain does no harm.
        if clock::timeout_at(until, silent).await.is_none() {
            self.link.notified.forget(&self.topic);
        }
        drop(self.duty);
    }
}

/// An acquisition that waits without a queue.
pub(super) struct NotifiedAttempt {
    server: Arc<Server>,
    request: Request,
    caller: Option<Caller>,
}

impl NotifiedAttempt {
    pub(super) fn new(server: Arc<Server>, request: Request) -> Self {
        Self {
            server,
            request,
            caller: None,
        }
    }

    /// Waits no more.
    fn leave(&mut self) {
        if let Some(caller) = self.caller.take()
            && caller
                .link
                .notified
                .leave(&caller.topic, &caller.callers.name)
        {
            engine::spawn(caller.fall_silent());
        }
    }
}

impl Attempt for NotifiedAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            let (server, request) = (&self.server, &self.request);
            let caller = self
                .caller
                .get_or_insert_with(|| Caller::join(server, request));
            let callers = &caller.callers;
            let turn = callers.turn.clone().acquire_owned().await;
            let _turn = turn.expect("a link's semaphore is never closed");
            // The last of those before may be taking the marker along that this one will leave.
            drop(caller.listening.lock().await);
            let mut tried = false;
            loop {
                if server.is_refusing() {
                    return Err(BackendError::ShutDown);
                }
                callers.begin_try();
                let mut attempt = RedisAttempt::notified(server.clone(), request.clone());
                let answer = attempt.enter().await?;
                callers.end_try();
                if let Answer::Granted(grant) = answer {
                    let queued = tried;
                    return Ok(Answer::Granted(Grant { queued, ..grant }));
                }
                tried = true;
                if caller.listen().await? {
                    continue;
                }
                tokio::select! {
                    () = callers.woken.notified() => {}
                    () = clock::sleep_until(clock::now() + TRY_AGAIN) => {}
                }
            }
        })
    }

    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        let answered = self
            .caller
            .as_ref()
            .is_some_and(|caller| caller.callers.is_answered());
        let left = if answered {
            Ok(Leaving::Left)
        } else {
            let trouble = self.server.trouble();
            Err(BackendError::Unreachable(
                trouble.unwrap_or_else(|| "no answer".into()),
            ))
        };
        Self::leave(self);
        Box::pin(std::future::ready(left))
    }
}

impl Drop for NotifiedAttempt {
    fn drop(&mut self) {
        Self::leave(self);
    }
}
