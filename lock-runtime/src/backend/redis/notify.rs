//! Waiting without a queue: a release for which nobody queues wakes the processes that wait so, and these try again.
//!
//! In one process those who wait for one lock take turns at trying, so that a release costs a process one try, however
//! many wait in it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    key::LockName,
    lease::Grant,
};
use tokio::sync::{Notify, Semaphore};

use super::{Arg, Duty, Names, Server, attempt::RedisAttempt, link::Link, script};
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
}

/// All who wait without a queue on one link, by lock.
#[derive(Debug, Default)]
pub(super) struct Notified(Mutex<HashMap<String, Weak<Callers>>>);

impl Notified {
    fn callers(&self, name: &LockName) -> Arc<Callers> {
        let mut all = lock(&self.0);
        if let Some(callers) = all.get(name.as_str()).and_then(Weak::upgrade) {
            return callers;
        }
        let callers = Arc::new(Callers {
            turn: Arc::new(Semaphore::new(1)),
            woken: Notify::new(),
        });
        all.insert(name.as_str().to_owned(), Arc::downgrade(&callers));
        callers
    }

    /// One caller less; true if it was the last one.
    fn leave(&self, name: &LockName, callers: Arc<Callers>) -> bool {
        let mut all = lock(&self.0);
        drop(callers);
        let last = all
            .get(name.as_str())
            .is_some_and(|callers| callers.strong_count() == 0);
        if last {
            all.remove(name.as_str());
        }
        last
    }

    /// Lets one caller try, for the lock is free.
    pub(super) fn wake(&self, name: &str) {
        let all = lock(&self.0);
        if let Some(callers) = all.get(name).and_then(Weak::upgrade) {
            callers.woken.notify_one();
        }
    }

    /// Lets all of them look what has become of the client.
    pub(super) fn wake_all(&self) {
        for callers in lock(&self.0).values().filter_map(Weak::upgrade) {
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
    link: Arc<Link>,
    callers: Arc<Callers>,
    duty: Duty,
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

    /// Waits no more. The last caller takes the link's marker along.
    fn leave(&mut self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let Caller {
            link,
            callers,
            duty,
        } = self.caller.take()?;
        let name = self.request.name.clone();
        if !link.notified.leave(&name, callers) {
            return None;
        }
        let server = self.server.clone();
        Some(async move {
            let (names, marker) = (Names::new(name), marker(&link.inbox));
            let (keys, args) = ([names.queue()], [Arg::Text(&marker)]);
            let forgetting = server.run(&script::FORGET, &keys, &args);
            // Unanswered, the marker ends with the queue, in two seconds.
            let _ = clock::timeout_at(clock::now() + FORGET_PATIENCE, forgetting).await;
            drop(duty);
        })
    }
}

impl Attempt for NotifiedAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            let server = self.server.clone();
            let caller = self.caller.get_or_insert_with(|| {
                let link = server.link();
                Caller {
                    callers: link.notified.callers(&self.request.name),
                    link,
                    duty: server.begin_duty(),
                }
            });
            let callers = caller.callers.clone();
            let turn = callers.turn.clone().acquire_owned().await;
            let _turn = turn.expect("a link's semaphore is never closed");
            let mut tried = false;
            loop {
                if server.is_refusing() {
                    return Err(BackendError::ShutDown);
                }
                let mut attempt = RedisAttempt::notified(server.clone(), self.request.clone());
                if let Answer::Granted(grant) = attempt.enter().await? {
                    let queued = tried;
                    return Ok(Answer::Granted(Grant { queued, ..grant }));
                }
                tried = true;
                tokio::select! {
                    () = callers.woken.notified() => {}
                    () = clock::sleep_until(clock::now() + TRY_AGAIN) => {}
                }
            }
        })
    }

    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        let leaving = Self::leave(self);
        Box::pin(async move {
            if let Some(leaving) = leaving {
                leaving.await;
            }
            Ok(Leaving::Left)
        })
    }
}

impl Drop for NotifiedAttempt {
    fn drop(&mut self) {
        if let Some(leaving) = Self::leave(self) {
            engine::spawn(leaving);
        }
    }
}
