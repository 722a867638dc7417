//! Callers that use locks while servers fail or slots move: one caller holds a lock, 20 callers wait for it, and five
//! callers keep acquiring locks of their own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lock_runtime::{LockClient, LockError, LockGuard, ReleaseOutcome};
use support::{
    history::{History, Inside},
    matrix::Seen,
};
use tokio::{task::JoinHandle, time::sleep};

use crate::fixture::{MS, SECOND, client, until_waiting};

/// The number of callers that wait for `k`.
const WAITERS: usize = 20;
/// The number of callers with a lock of their own.
const BUSY: usize = 5;

/// The time within which a replica replaces a failed primary. The other servers notice the failure after at most a
/// second, and need several elections on a loaded machine.
pub(super) const FAILOVER: Duration = Duration::from_secs(15);

/// The callers of three clients: the holder's client, and two clients for the other callers.
pub(super) struct Load {
    pub(super) holder: LockClient,
    guard: LockGuard,
    inside: Inside,
    history: History,
    waiting: Vec<JoinHandle<Result<(), LockError>>>,
    busy: Vec<JoinHandle<(usize, Duration)>>,
    stop: Arc<AtomicBool>,
}

/// The measurements of the callers.
pub(super) struct Finished {
    /// The time from the release by the holder until all waiters had entered and left.
    pub(super) waiters: Duration,
    /// The duration of the longest call of a caller with a lock of its own.
    pub(super) longest_call: Duration,
    /// The number of calls of the callers with locks of their own.
    pub(super) calls: usize,
}

impl Load {
    /// Starts the callers, and returns when the holder has entered and the waiters are queued. The lease of the holder
    /// is renewed.
    pub(super) async fn start(url: &str, lease: Duration) -> Self {
        let holder = client(url).await;
        let others = [client(url).await, client(url).await];
        let history = History::strict();
        let lock = holder.lock("k").lease(lease).renew(true);
        let guard = lock.acquire().await.unwrap();
        let inside = history.enter("k", guard.token().get());
        let waiting = (0..WAITERS).map(|number| {
            let lock = others[number % 2].lock("k");
            let lock = lock.wait(60 * SECOND).lease(10 * SECOND);
            let history = history.clone();
            tokio::spawn(async move {
                let guard = lock.acquire().await?;
                let inside = history.enter("k", guard.token().get());
                sleep(20 * MS).await;
                inside.exit();
                guard.release().await;
                Ok(())
            })
        });
        let waiting = waiting.collect();
        until_waiting(&holder, WAITERS).await;
        let stop = Arc::new(AtomicBool::new(false));
        let busy = (0..BUSY).map(|number| {
            // If a primary fails before it has replicated a release, the lock stays taken on the new primary until the
            // lease ends. Therefore, this test uses leases that are shorter than `wait`.
            let lock = others[number % 2].lock(Self::busy_key(number));
            let lock = lock.wait(20 * SECOND).lease(3 * SECOND);
            tokio::spawn(call_again(lock, stop.clone()))
        });
        Self {
            busy: busy.collect(),
            holder,
            guard,
            inside,
            history,
            waiting,
            stop,
        }
    }

    fn busy_key(number: usize) -> String {
        format!("busy:{number}")
    }

    /// Returns the keys of the callers with locks of their own.
    pub(super) fn busy_keys() -> impl Iterator<Item = String> {
        (0..BUSY).map(Self::busy_key)
    }

    /// Acquires `other`, a lock of the failed primary that no caller uses, and then calls [`finish`](Self::finish).
    /// Records the measured times in `seen`, for the fault matrix.
    pub(super) async fn finish_after_failover(self, seen: &mut Seen, killed: Instant, other: &str) {
        let other = self.holder.lock(other).wait(20 * SECOND);
        other.run(async {}).await.unwrap();
        seen.within(
            "the first call after the failover enters",
            FAILOVER,
            killed.elapsed(),
        );
        let finished = self.finish().await;
        seen.within(
            "20 waiters enter after the release",
            3 * SECOND,
            finished.waiters,
        );
        seen.within(
            "the longest call during the failover",
            FAILOVER + SECOND,
            finished.longest_call,
        );
    }

    /// Asserts that the holder has not lost its lease, releases its lock, and waits until the other callers have ended.
    /// Asserts that the holds did not overlap, and that their tokens rise.
    pub(super) async fn finish(self) -> Finished {
        assert_eq!(self.guard.loss(), None);
        self.inside.exit();
        assert_eq!(self.guard.release().await, ReleaseOutcome::Released);
        let released = Instant::now();
        for waiting in self.waiting {
            waiting.await.unwrap().unwrap();
        }
        let waiters = released.elapsed();
        self.stop.store(true, Ordering::SeqCst);
        let (mut calls, mut longest_call) = (0, Duration::ZERO);
        for busy in self.busy {
            let (entered, longest) = busy.await.unwrap();
            calls += entered;
            longest_call = longest_call.max(longest);
        }
        self.history.check().assert_clean(WAITERS + 1);
        Finished {
            waiters,
            longest_call,
            calls,
        }
    }
}

/// Acquires and releases a lock again and again. Returns the number of calls, and the duration of the longest call.
async fn call_again(lock: lock_runtime::Lock, stop: Arc<AtomicBool>) -> (usize, Duration) {
    let (mut calls, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::SeqCst) {
        let started = Instant::now();
        match lock.run(async {}).await {
            // A new primary can lack the grant, because replication lags. The call then returns `Lost`.
            Ok(()) | Err(LockError::Lost { .. }) => calls += 1,
            Err(error) => panic!("{error}"),
        }
        longest = longest.max(started.elapsed());
    }
    (calls, longest)
}
