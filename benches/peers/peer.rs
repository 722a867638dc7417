//! The peers, which are the locks of other Rust crates. The benchmark calls each peer in the way that the peer's
//! documentation shows.
//!
//! All peers that have settings for the lease and for the longest wait get the same values. All other settings of the
//! peers keep their defaults.

use std::{future::Future, sync::Arc, time::Duration};

use async_redis_lock::{Locker, Options};
use distkit::{
    DistkitError, DistkitRedisKey,
    lock::{LockError as DistkitLockError, LockGuardState, LockOptions, Mutex as DistkitMutex},
};
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::RedisLockProvider;
use futures_util::future::join;
use lock_runtime::{LockError, Release, Strategy};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis_for_redis_lock::aio::MultiplexedConnection;
use redis_lock::LockAcrossOptions;
use rslock::LockManager;
use serde::Serialize;
use tokio::{
    sync::{Mutex, oneshot},
    time::timeout,
};

use crate::{
    candidates::{Candidate, Cycle, LEASE, Seat, Who, ours, warm},
    clock::now,
};

/// The default pause between two tries of redis-lock and of async-redis-lock. distributed-lock-redis tries only once,
/// so this benchmark repeats the try after the same pause.
pub(crate) const DOCUMENTED: Duration = Duration::from_millis(100);

/// The default pause between two tries of distkit.
pub(crate) const DISTKIT_DOCUMENTED: Duration = Duration::from_millis(50);

/// The pause between two tries of a baseline, and of a peer with [`Poll::Quick`].
const QUICK: Duration = Duration::from_millis(5);

/// The longest wait of the peers that have such a setting, which is far longer than any task really waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a peer that polls tries again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poll {
    /// The peer tries again as often as its documentation says.
    Documented,
    /// The peer tries again every 5 ms, like the baselines.
    Quick,
}

/// How a holder learns from its library that its lock was lost while the holder worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Told {
    /// The holder's work was stopped when the loss was noticed.
    Stopped,
    /// The holder learnt of the loss from a flag or an error after its work had ended.
    Afterwards,
    /// The holder was not notified of a loss, or its lock was not lost.
    Nothing,
}

/// The lease of a lock, and whether the lease is renewed. Only this project's lock uses the field `renew`. A peer
/// renews its lease if its documentation shows a use that renews.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    pub(crate) renew: bool,
}

/// A lock of this project, a baseline, or a Rust peer.
#[derive(Clone)]
pub(crate) enum Peer {
    Own(Candidate),
    /// rslock's `acquire` and `release`, which do not renew the lease.
    Rslock(LockManager),
    /// rslock's `using`, which renews the lease.
    RslockUsing(LockManager),
    /// redis-lock's `lock_across`. Each task puts its own mutex around a clone of the connection. A single mutex for
    /// all tasks, as in redis-lock's example, would allow only one round trip at a time.
    RedisLock(MultiplexedConnection, Duration),
    AsyncRedisLock(Locker, Duration),
    DistributedLockRedis(Arc<RedisLockProvider>, Duration),
    /// distkit's `Mutex`, which renews its lease. Each call makes a mutex of its own, because a mutex has one key and one
    /// owner.
    Distkit(ConnectionManager, Duration),
}

impl Peer {
    pub(crate) async fn own(who: Who, url: &str) -> Self {
        Self::Own(Candidate::connect(who, url).await)
    }

    pub(crate) async fn ours(url: &str, strategy: Strategy, release: Release) -> Self {
        warm(Self::Own(Candidate::Ours(
            ours(url, strategy, release).await,
        )))
        .await
    }

    /// Returns rslock's lock manager. The manager sleeps for a random time between two tries: for up to 200 ms, or for
    /// up to 5 ms if `poll` is [`Poll::Quick`].
    fn manager(url: &str, poll: Poll) -> LockManager {
        let mut manager = LockManager::new(vec![url]);
        if poll == Poll::Quick {
            manager.set_retry(3, QUICK);
        }
        manager
    }

    pub(crate) async fn rslock(url: &str, poll: Poll) -> Self {
        warm(Self::Rslock(Self::manager(url, poll))).await
    }

    pub(crate) async fn rslock_using(url: &str) -> Self {
        warm(Self::RslockUsing(Self::manager(url, Poll::Documented))).await
    }

    pub(crate) async fn redis_lock(url: &str, poll: Poll) -> Self {
        let client = redis_for_redis_lock::Client::open(url).expect("the server's URL");
        let connection = client.get_multiplexed_async_connection().await;
        let connection = connection.expect("redis-lock connects");
        warm(Self::RedisLock(connection, every(poll))).await
    }

    pub(crate) async fn async_redis_lock(url: &str, poll: Poll) -> Self {
        let locker = Locker::from_redis_url(url).await;
        let locker = locker.expect("async-redis-lock connects");
        warm(Self::AsyncRedisLock(locker, every(poll))).await
    }

    pub(crate) async fn distributed_lock_redis(url: &str, poll: Poll) -> Self {
        let provider = provider(url, LEASE).await;
        warm(Self::DistributedLockRedis(provider, every(poll))).await
    }

    pub(crate) async fn distkit(url: &str, poll: Poll) -> Self {
        let poll = match poll {
            Poll::Documented => DISTKIT_DOCUMENTED,
            Poll::Quick => QUICK,
        };
        warm(Self::Distkit(of_distkit(url).await, poll)).await
    }

    /// Runs `work` under the lock. If the lock was lost, returns how the holder was notified of the loss. The work can
    /// take longer than the lease.
    pub(crate) async fn work<F: Future<Output = ()> + Send>(
        &self,
        key: &str,
        Terms { lease, renew }: Terms,
        work: F,
    ) -> Told {
        match self {
            Self::Own(Candidate::Ours(client)) => {
                let lock = client.lock(key).wait(PATIENCE).lease(lease).renew(renew);
                match lock.run(work).await {
                    Ok(()) => Told::Nothing,
                    Err(LockError::Lost { .. }) => Told::Stopped,
                    Err(error) => panic!("the lock of this project was not granted: {error}"),
                }
            }
            Self::Own(_) => unreachable!("a baseline has no lease of its own"),
            Self::Rslock(manager) => {
                let guard = manager.acquire(key, lease).await;
                let guard = guard.expect("rslock grants the lock");
                work.await;
                guard.release().await;
                Told::Nothing
            }
            Self::RslockUsing(manager) => {
                let done = manager.using(key.as_bytes(), lease, async || work.await);
                match done.await {
                    Ok(()) => Told::Nothing,
                    Err(_) => Told::Stopped,
                }
            }
            Self::RedisLock(connection, poll) => {
                let done = lock_across(connection, key, lease, *poll, PATIENCE, work).await;
                done.expect("redis-lock grants the lock");
                Told::Nothing
            }
            Self::AsyncRedisLock(locker, poll) => {
                let options = options(lease, *poll, PATIENCE);
                let lock = locker.acquire_with_options(&options, key).await;
                let lock = lock.expect("async-redis-lock grants the lock");
                work.await;
                let lost = lock.is_lost();
                if lock.release().await.is_err() || lost {
                    Told::Afterwards
                } else {
                    Told::Nothing
                }
            }
            Self::DistributedLockRedis(provider, poll) => {
                let handle = poll_for(provider, key, *poll, u64::MAX).await;
                let handle = handle.expect("distributed-lock-redis grants the lock");
                let mut lost = handle.lost_token().clone();
                let told = tokio::select! {
                    () = work => Told::Nothing,
                    lost = lost.changed() => {
                        lost.expect("the handle is held");
                        Told::Stopped
                    }
                };
                handle
                    .release()
                    .await
                    .expect("distributed-lock-redis releases");
                told
            }
            Self::Distkit(connection, poll) => {
                let mutex = mutex(connection, key, lease, *poll);
                let guard = mutex.lock().await.expect("distkit grants the lock");
                work.await;
                match guard.release().await.expect("distkit releases") {
                    LockGuardState::Lost => Told::Afterwards,
                    _ => Told::Nothing,
                }
            }
        }
    }

    /// Returns the peer with this lease. If the lease is a setting of the peer's connection, connects the peer again.
    /// The other peers get the lease as an argument of each call.
    pub(crate) async fn with_lease(self, url: &str, lease: Duration) -> Self {
        match self {
            Self::DistributedLockRedis(_, poll) => {
                Self::DistributedLockRedis(provider(url, lease).await, poll)
            }
            other => other,
        }
    }
}

/// Returns a connection for distkit.
pub(crate) async fn of_distkit(url: &str) -> ConnectionManager {
    let client = redis::Client::open(url).expect("the server's URL");
    // By default, the connection gives up after half a second, which is too short for ten thousand tasks that poll.
    let config = ConnectionManagerConfig::new().set_response_timeout(None);
    let connection = client.get_connection_manager_with_config(config).await;
    connection.expect("distkit connects")
}

fn every(poll: Poll) -> Duration {
    match poll {
        Poll::Documented => DOCUMENTED,
        Poll::Quick => QUICK,
    }
}

fn options(lease: Duration, poll: Duration, patience: Duration) -> Options {
    Options::new()
        .ttl(lease)
        .extend(lease / 3)
        .retry(poll)
        .timeout(Some(patience))
}

/// Connects distributed-lock-redis with its default proportions. With these, the library extends a lease after each
/// third of the lease, and counts a lock as acquired only if 90 % of the lease are left.
pub(crate) async fn provider(url: &str, lease: Duration) -> Arc<RedisLockProvider> {
    let provider = RedisLockProvider::builder()
        .url(url)
        .expiry(lease)
        .extension_cadence(lease / 3)
        .min_validity(lease * 9 / 10)
        .build()
        .await;
    Arc::new(provider.expect("distributed-lock-redis connects"))
}

/// Tries again and again until the lock is granted, and returns the handle of the lock. Returns `None` if the lock is
/// not granted by the time `until`.
async fn poll_for(
    provider: &RedisLockProvider,
    key: &str,
    poll: Duration,
    until: u64,
) -> Option<impl LockHandle + use<>> {
    let lock = provider.create_lock(key);
    loop {
        let held = lock.try_acquire().await;
        let held = held.expect("the server answers distributed-lock-redis");
        if held.is_some() {
            return held;
        }
        if now() >= until {
            return None;
        }
        tokio::time::sleep(poll).await;
    }
}

/// Returns a mutex of distkit.
fn mutex(
    connection: &ConnectionManager,
    key: &str,
    lease: Duration,
    poll: Duration,
) -> Arc<DistkitMutex> {
    DistkitMutex::new(distkit_options(connection, key, lease, poll))
}

pub(crate) fn distkit_options(
    connection: &ConnectionManager,
    key: &str,
    lease: Duration,
    poll: Duration,
) -> LockOptions {
    let key = DistkitRedisKey::new(key.to_owned()).expect("distkit accepts the key");
    let options = LockOptions::builder(key, connection.clone());
    options.ttl(lease).retry_interval(poll).build()
}

/// Runs `work` under a lock of redis-lock. redis-lock accepts only bodies without borrows. The body that redis-lock
/// gets therefore only reports that the lock is held, and waits until `work` is done.
async fn lock_across<F: Future<Output = ()> + Send>(
    connection: &MultiplexedConnection,
    key: &str,
    ttl: Duration,
    retry: Duration,
    duration: Duration,
    work: F,
) -> Result<(), redis_lock::LockAcrossError> {
    let (enter, entered) = oneshot::channel();
    let (leave, left) = oneshot::channel::<()>();
    let body = async move {
        let _ = enter.send(());
        let _ = left.await;
    };
    let connections = [Arc::new(Mutex::new(connection.clone()))];
    let options = LockAcrossOptions {
        ttl,
        retry,
        duration,
    };
    let locked = redis_lock::lock_across(&connections, key, body, options);
    let work = async {
        if entered.await.is_ok() {
            work.await;
        }
        drop(leave);
    };
    join(locked, work).await.0
}

/// Returns the time that remains until `until`, but at least 1 ms and at most [`PATIENCE`].
pub(crate) fn patience(until: u64) -> Duration {
    Duration::from_nanos(until.saturating_sub(now())).clamp(Duration::from_millis(1), PATIENCE)
}

impl Cycle for Peer {
    async fn cycle<F: Future<Output = ()> + Send>(
        &mut self,
        seat: &Seat,
        until: u64,
        body: F,
    ) -> bool {
        let key = seat.key.as_str();
        match self {
            Self::Own(candidate) => return candidate.cycle(seat, until, body).await,
            Self::Rslock(manager) => {
                // rslock's `acquire` has no time limit, so the benchmark adds a time limit.
                let asking = timeout(patience(until), manager.acquire(key, LEASE));
                let Ok(guard) = asking.await else {
                    return false;
                };
                let guard = guard.expect("rslock grants the lock");
                body.await;
                guard.release().await;
            }
            Self::RslockUsing(manager) => {
                let done = manager.using(key.as_bytes(), LEASE, async || body.await);
                done.await.expect("rslock grants the lock");
            }
            Self::RedisLock(connection, poll) => {
                let patience = patience(until);
                let done = lock_across(connection, key, LEASE, *poll, patience, body).await;
                match done {
                    Ok(()) => {}
                    Err(redis_lock::LockAcrossError::Acquire(_)) => return false,
                    Err(error) => panic!("redis-lock: {error}"),
                }
            }
            Self::AsyncRedisLock(locker, poll) => {
                let options = options(LEASE, *poll, patience(until));
                let lock = match locker.acquire_with_options(&options, key).await {
                    Ok(lock) => lock,
                    Err(async_redis_lock::Error::Timeout) => return false,
                    Err(error) => panic!("async-redis-lock: {error}"),
                };
                body.await;
                lock.release().await.expect("async-redis-lock releases");
            }
            Self::DistributedLockRedis(provider, poll) => {
                let Some(handle) = poll_for(provider, key, *poll, until).await else {
                    return false;
                };
                body.await;
                let released = handle.release().await;
                released.expect("distributed-lock-redis releases");
            }
            Self::Distkit(connection, poll) => {
                let mutex = mutex(connection, key, LEASE, *poll);
                let guard = match mutex.try_lock_with_timeout(patience(until)).await {
                    Ok(guard) => guard,
                    Err(DistkitError::LockError(DistkitLockError::Timeout { .. })) => return false,
                    Err(error) => panic!("distkit: {error}"),
                };
                body.await;
                guard.release().await.expect("distkit releases");
            }
        }
        true
    }
}
