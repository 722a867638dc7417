//! Callers that queue one after the other, and come in when it is their turn.

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

/// Who came in.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) caller: usize,
    pub(crate) at: Instant,
    pub(crate) guard: LockGuard,
    /// None from when the lock is taken away on: another one may be inside before this one is told.
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

    /// From now on nobody promises that it is alone.
    pub(crate) fn loses(&mut self) {
        self.inside = None;
    }

    /// Is gone without a word.
    pub(crate) fn vanish(self) {
        drop(self.inside);
        drop(self.guard);
    }
}

/// What became of a caller.
type Outcome = (usize, Result<Entered, LockError>);

/// Numbered in the order in which they queue, whatever their clients.
pub(crate) struct Waiters {
    redis: MultiplexedConnection,
    history: History,
    callers: Vec<JoinHandle<()>>,
    sender: UnboundedSender<Outcome>,
    outcomes: UnboundedReceiver<Outcome>,
    /// How many have come in.
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

    /// How many stand in the queue on the server.
    pub(crate) async fn queued(&mut self) -> usize {
        ask(&mut self.redis, redis::cmd("ZCARD").arg(QUEUE)).await
    }

    pub(crate) async fn until_queued(&mut self, waiters: usize) {
        let mut redis = self.redis.clone();
        until(async || ask::<usize>(&mut redis, redis::cmd("ZCARD").arg(QUEUE)).await == waiters)
            .await;
    }

    /// The next caller asks for this lock, and stands in the queue when this returns.
    pub(crate) async fn queue(&mut self, lock: Lock) {
        let before = self.queued().await;
        let caller = self.call(lock);
        self.callers.push(tokio::spawn(caller));
        self.until_queued(before + 1).await;
    }

    /// As many callers, one after the other.
    pub(crate) async fn queue_many(&mut self, many: usize, lock: &Lock) {
        for _ in 0..many {
            self.queue(lock.clone()).await;
        }
    }

    /// The same for one that lives on another runtime.
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

    /// The caller is dropped where it stands.
    pub(crate) async fn cancel(&mut self, caller: usize) {
        let number = u64::try_from(caller).unwrap();
        self.history.gave_up("k", number);
        self.callers[caller].abort();
        let _ = (&mut self.callers[caller]).await;
    }

    /// What becomes of the next caller of whom something becomes.
    async fn outcome(&mut self) -> Outcome {
        let outcome = timeout(20 * SECOND, self.outcomes.recv()).await;
        outcome
            .expect("nobody comes in")
            .expect("the waiters lives")
    }

    /// Who comes in next.
    pub(crate) async fn next(&mut self) -> Entered {
        let (caller, outcome) = self.outcome().await;
        self.holds += 1;
        outcome.unwrap_or_else(|error| panic!("caller {caller}: {error}"))
    }

    /// Who does not come in, and why.
    pub(crate) async fn refused(&mut self) -> (usize, LockError) {
        let (caller, outcome) = self.outcome().await;
        (caller, outcome.expect_err("nobody comes in"))
    }

    /// Whether nobody has come in that was not asked for.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.outcomes.is_empty()
    }

    /// These come in, in this order, each after the one before has left.
    pub(crate) async fn pass(&mut self, callers: impl IntoIterator<Item = usize>) {
        for caller in callers {
            let entered = self.next().await;
            assert_eq!(entered.caller, caller, "somebody else's turn");
            entered.leave().await;
        }
    }

    /// One at a time, with tokens that rose, where somebody came in out of turn for a reason.
    pub(crate) fn assert_exclusive(&self) {
        let report = self.history.check();
        assert!(
            report.overlaps.is_empty() && report.tokens.is_empty(),
            "{report}"
        );
        assert_eq!(report.holds, self.holds);
    }

    /// One at a time, with tokens that rose, in the order in which they queued.
    pub(crate) fn assert_clean(&self) {
        self.history.check().assert_clean(self.holds);
    }
}

/// The stored grant of `k`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) token: u64,
    pub(crate) lease_ms: u64,
    pub(crate) session_id: String,
    pub(crate) owners: Vec<String>,
}

impl Stored {
    /// Reads `token|lease|session_id|owner owner …`.
    pub(crate) fn read(text: &str) -> Self {
        let fields: Vec<&str> = text.split('|').collect();
        let [token, lease, session_id, owners] = fields[..] else {
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

/// Waits until the server has given `k` to so many at once, and returns that grant.
pub(crate) async fn until_cohort(server: &RedisServer, members: usize) -> Stored {
    let mut found = None;
    until(async || {
        let stored = crate::fixture::grant(server).await;
        found = stored.map(|text| Stored::read(&text));
        let owners = found.as_ref().map(|found| found.owners.len());
        owners == Some(members)
    })
    .await;
    found.expect("it was found")
}

/// What is left of the grant of `k`, if it is held.
pub(crate) async fn time_to_live(redis: &mut MultiplexedConnection) -> Option<std::time::Duration> {
    let left: i64 = ask(redis, redis::cmd("PTTL").arg(NAME)).await;
    u64::try_from(left)
        .ok()
        .map(std::time::Duration::from_millis)
}

/// A holder that everybody waits for; each queues behind it.
pub(crate) async fn holder(client: &LockClient) -> LockGuard {
    let lock = client.lock("k").lease(60 * SECOND);
    lock.acquire().await.expect("the key is free")
}
