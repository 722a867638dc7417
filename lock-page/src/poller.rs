//! The task that reads the locks from the lock server. One task reads the locks on behalf of all viewers. The task runs
//! only while somebody looks at a page.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lock_runtime::{
    FencingToken, ForcedRelease, KeyError, LockClient, LockError, LockKey, LockScan, MAX_KEY_BYTES,
    Status,
};
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval, timeout},
};

use crate::state::{Ask, Ms, QUEUE, State, View, millis};

/// The shortest time between two questions to the lock server. The page therefore sends at most 50 questions a second.
const PACE: Duration = Duration::from_millis(20);
/// The time after which a first question without an answer is shown as trouble. It is shorter than the time for which a
/// request for a page waits, so that the first page of a server that is down says so.
const SLOW: Duration = Duration::from_millis(500);
/// The time within which the lock server has to answer one question.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends questions to the lock server, and stores the answers.
pub(crate) struct Poller {
    client: LockClient,
    state: Mutex<State>,
    is_running: Mutex<bool>,
    /// The number of questions so far that were answered or have failed.
    answers: watch::Sender<u64>,
    /// A timer that allows one question in each interval of [`PACE`].
    pace: tokio::sync::Mutex<Option<Interval>>,
    started: (Instant, Ms),
}

/// A registration of a stream of changes. The stream counts as a viewer of its view until this value is dropped.
pub(crate) struct Watching {
    poller: Arc<Poller>,
    view: View,
}

impl Watching {
    pub(crate) fn view(&self) -> &View {
        &self.view
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.poller.state().leave(&self.view);
    }
}

impl Poller {
    pub(crate) fn new(client: LockClient) -> Self {
        let epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            client,
            state: Mutex::default(),
            is_running: Mutex::default(),
            answers: watch::Sender::default(),
            pace: tokio::sync::Mutex::default(),
            started: (Instant::now(), millis(epoch)),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present moment. A later call never returns an earlier moment, even if the system's clock is set
    /// back.
    pub(crate) fn now(&self) -> Ms {
        self.started.1 + millis(self.started.0.elapsed())
    }

    pub(crate) fn answers(&self) -> watch::Receiver<u64> {
        self.answers.subscribe()
    }

    /// Returns an error if the key of a view is invalid, or if its prefix is longer than a key can be.
    pub(crate) fn check(&self, view: &View) -> Result<(), LockError> {
        match view {
            View::Lock { key } => LockKey::new(key.as_str()).map(drop)?,
            View::List { prefix, .. } if prefix.len() > MAX_KEY_BYTES => {
                let bytes = prefix.len();
                return Err(KeyError::TooLong { bytes }.into());
            }
            View::List { .. } | View::History => {}
        }
        Ok(())
    }

    /// Lets the task read what a view shows, and waits for at most `patience`. The wait ends when everything that the
    /// view shows was read, or when there is a problem to show. Returns false if too many different views are watched.
    pub(crate) async fn look(self: &Arc<Self>, view: &View, patience: Duration) -> bool {
        let mut answers = self.answers();
        if !self.state().watch(view, false, self.now()) {
            return false;
        }
        self.run();
        let complete = async {
            loop {
                {
                    let state = self.state();
                    if state.is_complete(view, self.now()) || state.trouble(view).is_some() {
                        return;
                    }
                }
                if answers.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(patience, complete).await; // an incomplete view says so
        true
    }

    /// Lets the task read what a view shows, until the returned value is dropped. Returns `None` if too many views or
    /// streams are watched.
    pub(crate) fn follow(self: &Arc<Self>, view: &View) -> Option<Watching> {
        let may_watch = self.state().watch(view, true, self.now());
        may_watch.then(|| {
            self.run();
            Watching {
                poller: self.clone(),
                view: view.clone(),
            }
        })
    }

    /// Reads the state of one lock at once, without the task.
    pub(crate) async fn status(&self, key: &str) -> Result<Status, LockError> {
        self.permit().await;
        self.client.lock(key).wait(PATIENCE).status().await
    }

    /// Releases a lock by force.
    pub(crate) async fn release(
        &self,
        key: &str,
        token: FencingToken,
        by: &str,
    ) -> Result<ForcedRelease, LockError> {
        self.permit().await;
        let lock = self.client.lock(key).wait(PATIENCE);
        let outcome = lock.force_release(token, by).await?;
        if outcome == ForcedRelease::Released {
            self.state().forced(key, token, by.to_owned(), self.now());
        }
        Ok(outcome)
    }

    /// Waits until the pace allows the next question to the lock server.
    async fn permit(&self) {
        let mut pace = self.pace.lock().await;
        let pace = pace.get_or_insert_with(|| {
            let mut pace = interval(PACE);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            pace
        });
        pace.tick().await;
    }

    /// Starts the task, unless it is running already.
    fn run(self: &Arc<Self>) {
        let mut is_running = self
            .is_running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut is_running, true) {
            tokio::spawn(self.clone().poll());
        }
    }

    async fn poll(self: Arc<Self>) {
        let mut scan = None;
        loop {
            self.permit().await;
            let question = {
                let mut is_running = self
                    .is_running
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let mut state = self.state();
                let now = self.now();
                if !state.is_watched(now) {
                    *is_running = false;
                    return;
                }
                state.next_question(now)
            };
            if let Some(question) = question {
                let asked = self.now();
                let mut asking = pin!(self.ask(question, &mut scan));
                if timeout(SLOW, &mut asking).await.is_err() {
                    self.state().unanswered(asked);
                    self.answers.send_modify(|answers| *answers += 1);
                    asking.await;
                }
                self.answers.send_modify(|answers| *answers += 1);
            }
        }
    }

    /// Sends one question to the lock server, and records the answer.
    async fn ask(&self, question: Ask, scan: &mut Option<LockScan>) {
        let asked = match &question {
            Ask::Walk(begin) => self.walk(begin.as_deref(), scan).await,
            Ask::Status(key) => {
                let status = self.client.lock(key).wait(PATIENCE).status().await;
                match status {
                    Ok(status) => {
                        self.state().read(key, Some(&status), self.now());
                        Ok(())
                    }
                    Err(LockError::WrongLayout { .. } | LockError::InvalidKey(_)) => {
                        self.state().read(key, None, self.now());
                        Ok(())
                    }
                    Err(error) => Err(Some(error)),
                }
            }
            Ask::Queue(key) => {
                let lock = self.client.lock(key).wait(PATIENCE);
                let queue = lock.waiters(QUEUE).await;
                let queue = match queue {
                    Err(LockError::InvalidKey(_)) => Ok(Vec::new()),
                    queue => queue,
                };
                let noted = queue.map(|queue| self.state().queued(key, &queue, self.now()));
                noted.map_err(Some)
            }
        };
        if let Err(error) = asked {
            let is_away = error
                .as_ref()
                .is_none_or(|error| matches!(error, LockError::Unreachable { .. }));
            let text = error.map_or_else(|| "no answer".into(), |error| with_causes(&error));
            self.state().failed(&question, is_away, text, self.now());
        }
    }

    /// Takes the next step of the walk, which is the scan that finds the held locks. Returns `Err(None)` if the server
    /// has not answered in time.
    async fn walk(
        &self,
        begin: Option<&str>,
        scan: &mut Option<LockScan>,
    ) -> Result<(), Option<LockError>> {
        let scan = match (begin, scan) {
            (None, Some(scan)) => scan,
            (begin, scan) => {
                // A visitor can search for text that no key contains, such as a control character. No scan can begin
                // with such a text, so the walk then covers all locks.
                let begun = self.client.scan(begin.unwrap_or_default());
                scan.insert(begun.or_else(|_| self.client.scan(""))?)
            }
        };
        let step = timeout(PATIENCE, scan.next_page());
        let found = step.await.map_err(|_| None)??;
        let now = self.now();
        match found {
            Some(keys) => self
                .state()
                .found(keys.iter().map(|key| key.as_str().to_owned()), now),
            None => self.state().walked(now),
        }
        Ok(())
    }
}

/// Returns the text of an error and of its causes.
pub(crate) fn with_causes(error: &LockError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
