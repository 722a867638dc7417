//! Tests of the cache entry that is rebuilt once.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use lock_runtime::{FencingToken, LockClient, LockError};
use recipes::cache::{Cache, product};
use tokio::{join, task::JoinSet, time::sleep};

use crate::fixture::{machines, until_waiting};

const SECOND: Duration = Duration::from_secs(1);

/// A database that takes a second to load a value, and counts the loads.
#[derive(Debug, Default)]
struct Source(AtomicU32);

impl Source {
    async fn load(&self) -> String {
        let load = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        sleep(SECOND).await;
        format!("load {load}")
    }

    fn loads(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

async fn read(locks: &LockClient, cache: &Cache, source: &Source) -> Result<String, LockError> {
    product(locks, cache, 7, || source.load()).await
}

#[tokio::test(start_paused = true)]
async fn of_fifty_callers_one_loads_the_value() {
    let machines = machines().await;
    let cache: &Cache = Box::leak(Box::new(Cache::default()));
    let source: &Source = Box::leak(Box::new(Source::default()));
    let mut callers = JoinSet::new();
    for number in 0..50 {
        let locks = machines[number % 2].clone();
        callers.spawn(async move { read(&locks, cache, source).await });
    }
    for value in callers.join_all().await {
        assert_eq!(value.unwrap(), "load 1");
    }
    assert_eq!(source.loads(), 1);
}

/// The next caller loads the value again, because the cache has none.
#[tokio::test(start_paused = true)]
async fn a_loader_that_loses_the_lock_stores_nothing() {
    let [one, other] = machines().await;
    let (cache, source) = (Cache::default(), Source::default());
    let lose = async {
        until_waiting(&other, "cache:product:7", 1).await;
        assert_eq!(source.loads(), 1);
        assert!(one.testing().expect("in-process").lose("cache:product:7"));
    };
    let (lost, next, ()) = join!(
        read(&one, &cache, &source),
        read(&other, &cache, &source),
        lose
    );
    assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
    assert_eq!(next.unwrap(), "load 2");
    assert_eq!(cache.get(7).as_deref(), Some("load 2"));
}

#[tokio::test]
async fn the_cache_refuses_the_value_of_a_late_holder() {
    let cache = Cache::default();
    for (token, value) in [(4, "old"), (5, "new"), (4, "late")] {
        cache.put(7, FencingToken::new(token), value);
    }
    assert_eq!(cache.get(7).as_deref(), Some("new"));
}

#[tokio::test(start_paused = true)]
async fn without_a_lock_server_a_caller_loads_for_itself() {
    let [one, _] = machines().await;
    let (cache, source) = (Cache::default(), Source::default());
    one.testing().expect("in-process").unreachable(60 * SECOND);
    assert_eq!(read(&one, &cache, &source).await.unwrap(), "load 1");
    assert_eq!(cache.get(7), None);
}
