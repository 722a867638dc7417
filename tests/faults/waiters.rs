//! Callers that queue one after another and enter when it is their turn.

use std::{future::Future, time::Instant};

use lock_runtime::{Lock, LockClient, LockError, LockGuard};
use redis::aio::MultiplexedConnection;
use support::{
    history::{History, Inside},
    server::{RedisServer, ask},
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::JoinHandle,
    time::timeout,
};

use crate::fixture::{NAME, QUEUE, SECOND, until};

/// A caller that has acquired the lock `k`.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) caller: usize,
    pub(crate) at: Instant,
    pub(crate) guard: LockGuard,
    /// The visit that the history records for this caller. `None` after the test has taken the lock away from the
    /// caller, because another caller can then enter before this caller is notified of the loss.
    inside: Option<Inside>,
}

impl Entered {
    pub(crate) fn token(&self) -> u64 {
        self.guard.token().get()
    }

    pub(crate) async fn leave(self) {
        drop(self.inside);
        self.guard.release().await;
    }

    /// Stops counting this caller as a holder, because from now on another caller can hold the lock at the same time.
    pub(crate) fn loses(&mut self) {
        self.inside = None;
    }

    /// Leaves by dropping the guard, without awaiting its release.
    pub(crate) fn vanish(self) {
        drop(self.inside);
        drop(self.guard);
    }
}

/// The number of a caller, and the result of its acquisition.
type Outcome = (usize, Result<Entered, LockError>);

/// Callers of any number of clients, numbered in the order in which they queue.
pub(crate) struct Waiters {
    redis: MultiplexedConnection,
    history: History,
    callers: Vec<JoinHandle<()>>,
    sender: UnboundedSender<Outcome>,
    outcomes: UnboundedReceiver<Outcome>,
    /// The number of callers that have entered.
    holds: usize,
}

impl Waiters {
    pub(crate) async fn at(server: &RedisServer) -> Self {
        let (sender, outcomes) = mpsc::unbounded_channel();
        Self {
            redis: server.connection().await,
            history: History::new(),
            callers: Vec::new(),
            sender,
            outcomes,
            holds: 0,
        }
    }

    /// Returns the number of waiters in the server's queue.
    pub(crate) async fn queued(&mut self) -> usize {
        ask(&mut self.redis, redis::cmd("ZCARD").arg(QUEUE)).await
    }

    pub(crate) async fn until_queued(&mut self, waiters: usize) {
        let mut redis = self.redis.clone();
        until(async || ask::<usize>(&mut redis, redis::cmd("ZCARD").arg(QUEUE)).await == waiters)
            .await;
    }

    /// Starts the next caller, and returns when it is in the queue.
    pub(crate) async fn queue(&mut self, lock: Lock) {
        let before = self.queued().await;
        let caller = self.call(lock);
        self.callers.push(tokio::spawn(caller));
        self.until_queued(before + 1).await;
    }

    /// Starts `many` callers, one after another.
    pub(crate) async fn queue_many(&mut self, many: usize, lock: &Lock) {
        for _ in 0..many {
            self.queue(lock.clone()).await;
        }
    }

    /// Starts the next caller on another runtime.
    pub(crate) async fn queue_on(&mut self, runtime: &tokio::runtime::Handle, lock: Lock) {
        let before = self.queued().await;
        let caller = self.call(lock);
        self.callers.push(runtime.spawn(caller));
        self.until_queued(before + 1).await;
    }

    fn call(&self, lock: Lock) -> impl Future<Output = ()> + Send + use<> {
        let caller = self.callers.len();
        let number = u64::try_from(caller).unwrap();
        let (history, sender) = (self.history.clone(), self.sender.clone());
        history.queued("k", number);
        async move {
            let guard = match lock.acquire().await {
                Ok(guard) => guard,
                Err(error) => {
                    history.gave_up("k", number);
                    let _ = sender.send((caller, Err(error)));
                    return;
                }
            };
            let entered = Entered {
                caller,
                at: Instant::now(),
                inside: Some(history.enter_from_queue("k", number, guard.token().get())),
                guard,
            };
            let _ = sender.send((caller, Ok(entered)));
        }
    }

    /// Drops the future of a caller at the `.await` that the future has reached.
    pub(crate) async fn cancel(&mut self, caller: usize) {
        let number = u64::try_from(caller).unwrap();
        self.history.gave_up("k", number);
        self.callers[caller].abort();
        let _ = (&mut self.callers[caller]).await;
    }

    /// Waits for the next call to enter or fail, and returns its outcome.
    async fn outcome(&mut self) -> Outcome {
        let outcome = timeout(20 * SECOND, self.outcomes.recv()).await;
        outcome
            .expect("a call ends within 20 s")
            .expect("the channel of the outcomes is open")
    }

    /// Waits for the next call to enter, and returns its caller.
    pub(crate) async fn next(&mut self) -> Entered {
        let (caller, outcome) = self.outcome().await;
        self.holds += 1;
        outcome.unwrap_or_else(|error| panic!("caller {caller}: {error}"))
    }

    /// Waits for the next call to fail, and returns the number of its caller and the error.
    pub(crate) async fn refused(&mut self) -> (usize, LockError) {
        let (caller, outcome) = self.outcome().await;
        (caller, outcome.expect_err("the call returns an error"))
    }

    /// Returns `true` if no call has entered or failed since the test last read an outcome.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.outcomes.is_empty()
    }

    /// Asserts that these callers enter in this order, each after the previous caller has left.
    pub(crate) async fn pass(&mut self, callers: impl IntoIterator<Item = usize>) {
        for caller in callers {
            let entered = self.next().await;
            assert_eq!(entered.caller, caller, "callers entered in the wrong order");
            entered.leave().await;
        }
    }

    /// Asserts exclusion and rising tokens, but no order. Serves tests in which a caller has to enter out of order.
    pub(crate) fn assert_exclusive(&self) {
        let report = self.history.check();
        assert!(
            report.overlaps.is_empty() && report.tokens.is_empty(),
            "{report}"
        );
        assert_eq!(report.holds, self.holds);
    }

    /// Asserts exclusion, rising tokens, and that callers entered in the order in which they queued.
    pub(crate) fn assert_clean(&self) {
        self.history.check().assert_clean(self.holds);
    }
}

/// The grant of the lock `k`, as the server stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) token: u64,
    pub(crate) lease_ms: u64,
    pub(crate) session_id: String,
    pub(crate) owners: Vec<String>,
}

impl Stored {
    /// Parses `token|lease|session_id|owner owner …|words|since`.
    pub(crate) fn read(text: &str) -> Self {
        let fields: Vec<&str> = text.split('|').collect();
        let [token, lease, session_id, owners, _words, _since] = fields[..] else {
            panic!("`{text}` is no grant");
        };
        Self {
            token: token.parse().unwrap(),
            lease_ms: lease.parse().unwrap(),
            session_id: session_id.to_owned(),
            owners: owners.split(' ').map(str::to_owned).collect(),
        }
    }
}

/// Waits until the server has granted `k` to a cohort with this number of members, and returns that grant.
pub(crate) async fn until_cohort(server: &RedisServer, members: usize) -> Stored {
    let mut found = None;
    until(async || {
        let stored = crate::fixture::grant(server).await;
        found = stored.map(|text| Stored::read(&text));
        let owners = found.as_ref().map(|found| found.owners.len());
        owners == Some(members)
    })
    .await;
    found.expect("the grant was found")
}

/// Returns how much of the lease of `k` is left, or `None` if `k` is free.
pub(crate) async fn time_to_live(redis: &mut MultiplexedConnection) -> Option<std::time::Duration> {
    let left: i64 = ask(redis, redis::cmd("PTTL").arg(NAME)).await;
    u64::try_from(left)
        .ok()
        .map(std::time::Duration::from_millis)
}

/// Acquires the free lock `k` with a long lease, so that the callers of a test can queue behind this holder.
pub(crate) async fn holder(client: &LockClient) -> LockGuard {
    let lock = client.lock("k").lease(60 * SECOND);
    lock.acquire().await.expect("the key is free")
}
