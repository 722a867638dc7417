//! The names of the participants (the compared locks), which the tables show in their rows.

use lock_runtime::{Release, Strategy};

use crate::{
    candidates::Who,
    peer::{Peer, Poll},
    runs::WAITERS,
};

pub(crate) const OURS: &str = "ours";
pub(crate) const OURS_BACKGROUND: &str = "ours, background";
pub(crate) const OURS_RENEWED: &str = "ours, renewed";
pub(crate) const OURS_SPIN: &str = "ours, spin";
pub(crate) const SHA: &str = "baseline-sha";
pub(crate) const SET: &str = "baseline-set";
pub(crate) const GATE: &str = "baseline-gate";
pub(crate) const RSLOCK: &str = "rslock";
pub(crate) const RSLOCK_USING: &str = "rslock, using";
pub(crate) const REDIS_LOCK: &str = "redis-lock";
pub(crate) const ASYNC_REDIS_LOCK: &str = "async-redis-lock";
pub(crate) const DISTRIBUTED_LOCK_REDIS: &str = "distributed-lock-redis";
pub(crate) const DISTKIT: &str = "distkit";
const RSLOCK_QUICK: &str = "rslock, 5 ms";
const REDIS_LOCK_QUICK: &str = "redis-lock, 5 ms";
const ASYNC_REDIS_LOCK_QUICK: &str = "async-redis-lock, 5 ms";
const DISTRIBUTED_LOCK_REDIS_QUICK: &str = "distributed-lock-redis, 5 ms";
const DISTKIT_QUICK: &str = "distkit, 5 ms";
pub(crate) const REDISSON: &str = "Redisson";
pub(crate) const REDISSON_FAIR: &str = "Redisson, fair";
pub(crate) const REDISSON_ONCE: &str = "Redisson, tryLockAsync()";
pub(crate) const REDISSON_TIMED: &str = "Redisson, tryLockAsync(0, 30 s)";

/// The name of the row for round trips over a bare socket.
pub(crate) const SOCKET: &str = "a bare socket";
/// The name of the row for round trips with the client library.
pub(crate) const CRATE: &str = "the redis crate";

/// The participants (the locks that the benchmark compares) that run in this process. [`connect`] connects each of
/// these participants.
pub(crate) const RUST: [&str; 17] = [
    SHA,
    SET,
    GATE,
    OURS,
    OURS_BACKGROUND,
    OURS_SPIN,
    RSLOCK,
    RSLOCK_QUICK,
    RSLOCK_USING,
    REDIS_LOCK,
    REDIS_LOCK_QUICK,
    ASYNC_REDIS_LOCK,
    ASYNC_REDIS_LOCK_QUICK,
    DISTRIBUTED_LOCK_REDIS,
    DISTRIBUTED_LOCK_REDIS_QUICK,
    DISTKIT,
    DISTKIT_QUICK,
];

/// The participants in the workloads in which each task has its own key, so that no task waits.
pub(crate) const ALONE: [&str; 11] = [
    SHA,
    SET,
    OURS,
    OURS_BACKGROUND,
    RSLOCK,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    DISTKIT,
    REDISSON,
    REDISSON_FAIR,
];

/// The participants in the workloads in which all tasks or callers of this process want one key.
pub(crate) const AT_ONE_KEY: [&str; 17] = [
    SHA,
    GATE,
    OURS,
    OURS_BACKGROUND,
    OURS_SPIN,
    RSLOCK,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    DISTKIT,
    RSLOCK_QUICK,
    REDIS_LOCK_QUICK,
    ASYNC_REDIS_LOCK_QUICK,
    DISTRIBUTED_LOCK_REDIS_QUICK,
    DISTKIT_QUICK,
    REDISSON,
    REDISSON_FAIR,
];

/// The participants that run with each number of tasks that they can serve. They also take part in the runs with
/// several processes. These participants run with their documented settings.
pub(crate) const EVERY_SIZE: [&str; 11] = [
    SHA,
    GATE,
    OURS,
    OURS_SPIN,
    RSLOCK,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    DISTKIT,
    REDISSON,
    REDISSON_FAIR,
];

/// Returns whether this number of tasks can use the participant in a reasonable time. Redisson's fair lock searches its
/// whole queue at each try: several minutes were not enough to serve 512 threads. Redisson's plain lock would need ten
/// thousand threads for ten thousand tasks. With this project's strategy without a queue (`spin`), some of ten
/// thousand tasks had not got the lock after a minute.
pub(crate) fn can_serve(name: &str, tasks: usize) -> bool {
    match name {
        REDISSON_FAIR => tasks <= WAITERS,
        REDISSON | OURS_SPIN => tasks < 1_000,
        _ => true,
    }
}

/// All participants in the workloads that measure costs. Their order is that of the rows in `docs/peers.md` and
/// `docs/performance.md`.
pub(crate) const COST_ROWS: [&str; 18] = [
    SHA,
    SET,
    GATE,
    OURS,
    OURS_BACKGROUND,
    OURS_SPIN,
    RSLOCK,
    RSLOCK_QUICK,
    REDIS_LOCK,
    REDIS_LOCK_QUICK,
    ASYNC_REDIS_LOCK,
    ASYNC_REDIS_LOCK_QUICK,
    DISTRIBUTED_LOCK_REDIS,
    DISTRIBUTED_LOCK_REDIS_QUICK,
    DISTKIT,
    DISTKIT_QUICK,
    REDISSON,
    REDISSON_FAIR,
];

/// The participants whose callers are dropped.
pub(crate) const DROPPED: [&str; 8] = [
    SHA,
    OURS,
    RSLOCK,
    RSLOCK_USING,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    DISTKIT,
];

/// The participants in the contests. In a contest, a holder works for longer than its lease, or the benchmark deletes
/// its lock, while another caller waits.
pub(crate) const OUTLASTING: [&str; 8] = [
    OURS,
    OURS_RENEWED,
    RSLOCK,
    RSLOCK_USING,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    DISTKIT,
];

/// All participants in the workload with faults, in the order of the rows in `docs/peers.md`.
pub(crate) const FAULT_ROWS: [&str; 11] = [
    SHA,
    OURS,
    OURS_RENEWED,
    RSLOCK,
    RSLOCK_USING,
    REDIS_LOCK,
    ASYNC_REDIS_LOCK,
    DISTRIBUTED_LOCK_REDIS,
    DISTKIT,
    REDISSON_ONCE,
    REDISSON_TIMED,
];

/// Returns the number of round trips that a caller has to await for one lock and unlock.
pub(crate) fn awaited(name: &str) -> f64 {
    if name == OURS_BACKGROUND { 1.0 } else { 2.0 }
}

/// Connects one of the participants in [`RUST`].
pub(crate) async fn connect(name: &str, url: &str) -> Peer {
    let poll = if name.ends_with("5 ms") {
        Poll::Quick
    } else {
        Poll::Documented
    };
    match name {
        SHA => Peer::own(Who::BaselineSha, url).await,
        SET => Peer::own(Who::BaselineSet, url).await,
        GATE => Peer::own(Who::BaselineGate, url).await,
        OURS => Peer::own(Who::Ours, url).await,
        OURS_BACKGROUND => Peer::own(Who::OursBackground, url).await,
        OURS_SPIN => Peer::ours(url, Strategy::Spin, Release::Confirmed).await,
        RSLOCK | RSLOCK_QUICK => Peer::rslock(url, poll).await,
        RSLOCK_USING => Peer::rslock_using(url).await,
        REDIS_LOCK | REDIS_LOCK_QUICK => Peer::redis_lock(url, poll).await,
        ASYNC_REDIS_LOCK | ASYNC_REDIS_LOCK_QUICK => Peer::async_redis_lock(url, poll).await,
        DISTRIBUTED_LOCK_REDIS | DISTRIBUTED_LOCK_REDIS_QUICK => {
            Peer::distributed_lock_redis(url, poll).await
        }
        DISTKIT | DISTKIT_QUICK => Peer::distkit(url, poll).await,
        _ => panic!("no participant in this process is called {name}"),
    }
}
