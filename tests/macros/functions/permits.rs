//! Functions that take permits of a semaphore instead of a lock.

use std::{
    pin::Pin,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_runtime::{LockClient, LockError, OptionsError, distributed_lock};

use crate::Locked;

const GPUS: u32 = 3;

async fn client() -> LockClient {
    LockClient::connect("memory:").await.unwrap()
}

/// The number of calls inside, and the largest number so far.
#[derive(Default)]
struct Count {
    inside: AtomicU32,
    most: AtomicU32,
}

#[distributed_lock(key = "smtp", permits = 2, wait = "60s")]
async fn send(count: &Count) -> Locked<()> {
    let inside = count.inside.fetch_add(1, Ordering::SeqCst) + 1;
    count.most.fetch_max(inside, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(5)).await;
    count.inside.fetch_sub(1, Ordering::SeqCst);
    Ok(())
}

#[tokio::test]
async fn no_more_calls_are_inside_than_there_are_permits() {
    let (client, count) = (client().await, Count::default());
    let calls = (0..6).map(|_| client.scope(send(&count)));
    assert_eq!(join_all(calls).await, vec![Ok(()); 6]);
    assert_eq!(count.most.into_inner(), 2);
}

#[distributed_lock(key = "gpu:<host>", permits = GPUS, take = jobs, wait = "0s")]
async fn train(host: &str, jobs: u32) -> Locked<u32> {
    Ok(jobs)
}

struct Cluster {
    hosts: Vec<String>,
    gpus: u32,
}

#[async_trait]
trait Trains {
    async fn train_anywhere(&self, host: String, jobs: u32) -> Locked<String>;
}

#[async_trait]
impl Trains for Cluster {
    #[distributed_lock(key = "gpu:<host>", permits = self.gpus, take = jobs, wait = "0s")]
    async fn train_anywhere(&self, host: String, jobs: u32) -> Locked<String> {
        Ok(host)
    }
}

impl Cluster {
    /// `permits` names a part of a pattern, and the body consumes all arguments.
    #[distributed_lock(key = "gpu:<host>", permits = *of, take = self.gpus, wait = "0s")]
    async fn consumed(mut self, (host, of): (String, u32)) -> Locked<Vec<String>> {
        self.hosts.push(format!("{host}{of}"));
        Ok(self.hosts)
    }
}

fn cluster(gpus: u32) -> Cluster {
    Cluster {
        hosts: vec!["a".into()],
        gpus,
    }
}

type Call = Pin<Box<dyn Future<Output = Locked<()>>>>;

#[tokio::test]
async fn a_call_takes_as_many_permits_as_its_argument_says() {
    let client = client().await;
    let semaphore = client.semaphore("gpu:a", GPUS);
    let check = async |call: &dyn Fn(u32) -> Call| {
        assert_eq!(client.scope(call(3)).await, Ok(()));
        let held = semaphore.acquire_many(2).await.unwrap();
        assert_eq!(client.scope(call(1)).await, Ok(()));
        let refused = client.scope(call(2)).await;
        assert!(
            matches!(refused, Err(LockError::Busy { .. })),
            "{refused:?}"
        );
        held.release().await;
    };
    check(&|jobs| Box::pin(async move { train("a", jobs).await.map(drop) })).await;
    check(&|jobs| {
        let call = cluster(jobs).consumed(("a".into(), GPUS));
        Box::pin(async { call.await.map(drop) })
    })
    .await;
    check(&|jobs| {
        let cluster = cluster(GPUS);
        Box::pin(async move { cluster.train_anywhere("a".into(), jobs).await.map(drop) })
    })
    .await;
}

/// The values are known only at run time, so the call checks them before it requests the permits.
#[tokio::test]
async fn a_number_out_of_range_is_an_error() {
    let client = client().await;
    for take in [0, 4, 1001] {
        let refused = client.scope(train("a", take)).await;
        let error = OptionsError::PermitsOutOfRange { take, of: GPUS };
        assert_eq!(refused, Err(LockError::InvalidOptions(error)));
    }
    let refused = client.scope(cluster(1).consumed(("a".into(), 1001))).await;
    let error = OptionsError::PermitsOutOfRange { take: 1, of: 1001 };
    assert_eq!(refused, Err(LockError::InvalidOptions(error)));
}

#[distributed_lock(key = "gpu:<host>", permits = GPUS, take = 2)]
async fn train_twice(host: &str, jobs: u32) -> Locked<u32> {
    let client = LockClient::current()?;
    assert!(client.lock(format!("permits:gpu:{host}")).is_held_here());
    assert!(!client.lock(format!("gpu:{host}")).is_held_here());
    train(host, jobs).await
}

#[tokio::test]
async fn a_nested_call_shares_the_permits() {
    let client = client().await;
    let lock = client.lock("gpu:a").acquire().await.unwrap();
    assert_eq!(client.scope(train_twice("a", 2)).await, Ok(2));
    let error = OptionsError::MorePermitsThanHeld { wanted: 3, held: 2 };
    let refused = client.scope(train_twice("a", 3)).await;
    assert_eq!(refused, Err(LockError::InvalidOptions(error)));
    lock.release().await;
}

#[distributed_lock(key = "gpu:<host>", permits = GPUS, take = jobs, on_busy = fallback(later), wait = "0s")]
async fn with_a_fallback(host: String, jobs: u32) -> Locked<String> {
    Ok(format!("{host}{jobs}"))
}

async fn later(host: String, _: u32, _: LockError) -> Locked<String> {
    Ok(host)
}

#[tokio::test]
async fn a_fallback_runs_if_too_few_permits_are_left() {
    let client = client().await;
    let held = client
        .semaphore("gpu:a", GPUS)
        .acquire_many(2)
        .await
        .unwrap();
    let call = client.scope(with_a_fallback("a".into(), 2));
    assert_eq!(call.await, Ok("a".into()));
    let call = client.scope(with_a_fallback("a".into(), 1));
    assert_eq!(call.await, Ok("a1".into()));
    held.release().await;
}
