//! Measures the memory of a held lock and of a waiting call: the bytes that the process has requested from its
//! allocator and has not freed.

use std::{future::Future, pin::Pin, task::Poll, time::Duration};

use lock_runtime::LockClient;
use progress::{Progress, suspend};

use crate::{ALLOCATOR, Scale, renewals::take, targets::Targets};

/// The `wait` of the waiting calls, which is far longer than a run of the benchmark.
const PATIENCE: Duration = Duration::from_secs(600);

/// The number of combinations that [`waiting`] measures: calls of two methods (`acquire` and `run`), each with one key
/// for all calls and with a key for each call.
pub(crate) const KINDS: usize = 4;

fn live() -> f64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as f64 - stats.bytes_deallocated as f64
}

/// Waits until the memory of this process hardly changes any more. Until then, the memory still includes commands that
/// the server has not answered yet.
async fn quiet() {
    let mut before = live();
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = live();
        if (now - before).abs() < 1024.0 {
            return;
        }
        before = now;
    }
}

pub(crate) async fn held(
    place: &str,
    url: &str,
    scale: Scale,
    targets: &mut Targets,
    progress: &Progress,
) {
    progress.begin(format_args!(
        "memory of {} held locks, {place}",
        scale.holds
    ));
    let client = LockClient::connect(url).await.expect("a client");
    drop(take(&client, 100, scale.lease).await);
    quiet().await;
    let before = live();
    let guards = take(&client, scale.holds, scale.lease).await;
    // During this pause, the acquisitions free the memory that they no longer need. The pause ends before the first
    // renewal.
    tokio::time::sleep(scale.lease / 100).await;
    let each = (live() - before) / scale.holds as f64;
    let guard = size_of_val(&guards[0]);
    suspend(|| {
        println!("{place}: {each:.0} bytes per held lock, its guard of {guard} bytes included");
    });
    targets.at_most(1024.0, format!("bytes per held lock, {place}"), each);
    targets.lost += client.stats().lost;
    drop(guards);
    client.shutdown().await;
}

type Call<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

pub(crate) async fn waiting(
    place: &str,
    url: &str,
    scale: Scale,
    targets: &mut Targets,
    progress: &Progress,
) {
    let client = LockClient::connect(url).await.expect("a client");
    let lock = |key: String| {
        client
            .lock(key)
            .lease(Duration::from_secs(600))
            .wait(PATIENCE)
    };
    let own_keys: Vec<_> = (0..scale.waiting)
        .map(|number| format!("order:{number}"))
        .collect();
    let one_key = vec!["order".to_owned(); scale.waiting];
    for (keys, keys_of) in [(one_key, "one key"), (own_keys, "a key each")] {
        for (kind, explicit) in [("acquire", true), ("run", false)] {
            progress.begin(format_args!(
                "memory of {} calls of {kind}, {keys_of}, {place}",
                keys.len()
            ));
            let mut distinct = keys.clone();
            distinct.dedup();
            let mut guards = Vec::new();
            for key in distinct {
                guards.push(lock(key).acquire().await.expect("the lock is free"));
            }
            let mut calls: Vec<Call<'_>> = Vec::with_capacity(keys.len());
            quiet().await;
            let before = live();
            for key in &keys {
                let lock = lock(key.clone());
                calls.push(if explicit {
                    Box::pin(async move { drop(lock.acquire().await) })
                } else {
                    Box::pin(async move { drop(lock.run(async {}).await) })
                });
            }
            let own = calls.iter().map(|call| size_of_val(&**call)).sum::<usize>() as f64;
            let unpolled = live() - before;
            until_all_wait(&mut calls, &client, &keys).await;
            quiet().await;
            // The memory no longer changes, so the server has answered the requests of the last calls. A call frees the
            // memory of its answered request only when the call is polled again.
            poll_all(&mut calls).await;
            quiet().await;
            let each = |bytes: f64| bytes / keys.len() as f64;
            let beyond = each(live() - before - own);
            let (future, unpolled) = (each(own), each(unpolled - own));
            suspend(|| {
                println!(
                    "{place}: {beyond:.0} bytes per waiting call of {kind}, {keys_of}, beyond its own future of {future:.0}; {unpolled:.0} of them were there before it was polled"
                );
            });
            targets.at_most(
                2048.0,
                format!("bytes per waiting call of {kind}, {keys_of}, {place}"),
                beyond,
            );
            drop(calls);
            drop(guards);
            quiet().await;
        }
    }
    targets.lost += client.stats().lost;
    client.shutdown().await;
}

/// Polls all calls until each of them waits in the server's queue.
async fn until_all_wait(calls: &mut [Call<'_>], client: &LockClient, keys: &[String]) {
    let mut next = keys.to_vec();
    next.dedup();
    let each = keys.len() / next.len();
    for part in calls.chunks_mut(64) {
        // Only 64 calls send their requests at a time. The requests of all calls at once would enlarge buffers that
        // never shrink.
        for _ in 0..3 {
            poll_all(part).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    while let Some(key) = next.last() {
        let status = client.lock(key.as_str()).status().await;
        if status.expect("an answer").waiters == each {
            next.pop();
        } else {
            poll_all(calls).await;
        }
    }
    poll_all(calls).await;
}

async fn poll_all(calls: &mut [Call<'_>]) {
    std::future::poll_fn(|cx| {
        for call in &mut *calls {
            assert!(
                call.as_mut().poll(cx).is_pending(),
                "the call waits for a lock that is held"
            );
        }
        Poll::Ready(())
    })
    .await;
}
