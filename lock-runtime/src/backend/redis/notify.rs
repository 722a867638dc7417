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
    layout::Layout,
    lease::Grant,
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
    turn: Arc<Semaphore>,
    woken: Notify,
    /// The connection that listens to the lock's channel, where the layout has one.
    listening: tokio::sync::Mutex<Weak<Connection>>,
}

/// All who wait without a queue on one link, and how many they are, by what a release calls the lock.
#[derive(Debug, Default)]
pub(super) struct Notified(Mutex<HashMap<String, (Arc<Callers>, usize)>>);

impl Notified {
    /// One caller more.
    fn join(&self, topic: &str) -> Arc<Callers> {
        let mut all = lock(&self.0);
        let (callers, count) = all.entry(topic.to_owned()).or_insert_with(|| {
            let callers = Callers {
                turn: Arc::new(Semaphore::new(1)),
                woken: Notify::new(),
                listening: tokio::sync::Mutex::default(),
            };
            (Arc::new(callers), 0)
        });
        *count += 1;
        callers.clone()
    }

    /// One caller less; true if it was the last one.
    fn leave(&self, topic: &str) -> bool {
        let mut all = lock(&self.0);
        let Some((_, count)) = all.get_mut(topic) else {
            return false;
        };
        *count -= 1;
        *count == 0
    }

    fn is_deserted(&self, topic: &str) -> bool {
        lock(&self.0)
            .get(topic)
            .is_some_and(|(_, count)| *count == 0)
    }

    fn forget(&self, topic: &str) {
        let mut all = lock(&self.0);
        if all.get(topic).is_some_and(|(_, count)| *count == 0) {
            all.remove(topic);
        }
    }

    /// Lets one caller try, for the lock is free.
    pub(super) fn wake(&self, topic: &str) {
        if let Some((callers, _)) = lock(&self.0).get(topic) {
            callers.woken.notify_one();
        }
    }

    /// Lets all of them look what has become of the client.
    pub(super) fn wake_all(&self) {
        for (callers, _) in lock(&self.0).values() {
            callers.woken.notify_one();
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
    request: Request,
    link: Arc<Link>,
    /// What a release calls the lock: its name, or its channel.
    topic: String,
    callers: Arc<Callers>,
    duty: Duty,
}

impl Caller {
    fn join(server: &Arc<Server>, request: &Request) -> Self {
        let link = server.link();
        let topic = match server.layout {
            Layout::Redisson => redisson_channel(&request.name),
            _ => request.name.to_string(),
        };
        Self {
            server: server.clone(),
            request: request.clone(),
            callers: link.notified.join(&topic),
            link,
            topic,
            duty: server.begin_duty(),
        }
    }

    /// Hears of releases from now on. True if it did not before: of one in between it has not heard.
    async fn listen(&self) -> Result<bool, BackendError> {
        if self.server.layout != Layout::Redisson {
            return Ok(false); // the try that was in vain has left a marker
        }
        let Ok(connection) = self.link.connection().await else {
            return Ok(false); // it tries now and then, over another link
        };
        let mut listening = self.callers.listening.lock().await;
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
            if self.server.layout == Layout::Redisson {
                // Whoever joins meanwhile listens anew, afterwards.
                let mut listening = self.callers.listening.lock().await;
                if self.link.notified.is_deserted(&self.topic) {
                    *listening = Weak::new();
                    // Also where a caller was dropped before it knew that it listens.
                    if let Some(Ok(connection)) = self.link.connection().now_or_never() {
                        let _ = connection.listen(&self.topic, false).await;
                    }
                }
            } else {
                let (names, marker) = (
                    self.server.names(&self.request.name),
                    marker(&self.link.inbox),
                );
                let (keys, args) = ([names.companion()], [Arg::Text(&marker)]);
                let _ = self.server.run(&script::FORGET, &keys, &args).await;
            }
        };
        // Unanswered, the marker ends with the queue, in two seconds; and what is heard in vain does no harm.
        clock::timeout_at(until, silent).await;
        self.link.notified.forget(&self.topic);
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
            && caller.link.notified.leave(&caller.topic)
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
            let turn = caller.callers.turn.clone().acquire_owned().await;
            let _turn = turn.expect("a link's semaphore is never closed");
            let mut tried = false;
            loop {
                if server.is_refusing() {
                    return Err(BackendError::ShutDown);
                }
                let mut attempt = RedisAttempt::notified(server.clone(), request.clone());
                if let Answer::Granted(grant) = attempt.enter().await? {
                    let queued = tried;
                    return Ok(Answer::Granted(Grant { queued, ..grant }));
                }
                tried = true;
                if caller.listen().await? {
                    continue;
                }
                tokio::select! {
                    () = caller.callers.woken.notified() => {}
                    () = clock::sleep_until(clock::now() + TRY_AGAIN) => {}
                }
            }
        })
    }

    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        Self::leave(self);
        Box::pin(std::future::ready(Ok(Leaving::Left)))
    }
}

impl Drop for NotifiedAttempt {
    fn drop(&mut self) {
        Self::leave(self);
    }
}
