//! Polls callers of two in-process locks at random, under a paused clock.

use std::{cell::Cell, future::poll_fn, task::Poll, time::Duration};

use futures_util::future::LocalBoxFuture;
use lock_runtime::{LockClient, LockError, distributed_lock};
use proptest::{collection::vec, prelude::*, sample::select};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
    time::advance,
};

use crate::stores::{MS, SECOND};

/// Records which of the two keys have a running body. A body takes three polls if `long` is set, otherwise one.
#[derive(Default)]
struct Visits {
    long: bool,
    inside: [Cell<bool>; 2],
}

/// A body that runs under one of the keys, until it completes or is dropped.
struct Visit<'a>(&'a Cell<bool>);

impl<'a> Visit<'a> {
    fn begin(inside: &'a Cell<bool>) -> Self {
        assert!(!inside.replace(true), "two bodies run under one key");
        Self(inside)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Visits {
    async fn body(&self, keys: &[usize]) {
        let visits = keys.iter().map(|key| Visit::begin(&self.inside[*key]));
        let visits: Vec<_> = visits.collect();
        for _ in 0..if self.long { 2 } else { 0 } {
            yield_now().await;
        }
        drop(visits);
    }
}

#[distributed_lock(client = client, keys = ["a", "b"], wait = "5s")]
async fn visit_both(client: &LockClient, visits: &Visits) -> Result<(), LockError> {
    visits.body(&[0, 1]).await;
    Ok(())
}

/// Returns a new call of caller number `who`.
fn call<'a>(
    client: &'a LockClient,
    visits: &'a Visits,
    who: usize,
) -> LocalBoxFuture<'a, Result<(), LockError>> {
    let one = |key: usize, wait| async move {
        let lock = client.lock(["a", "b"][key]).wait(wait * SECOND);
        lock.run(visits.body(&[key])).await
    };
    match who {
        0 | 1 => Box::pin(visit_both(client, visits)),
        2 => Box::pin(one(1, 30)),
        3 => Box::pin(one(0, 3)),
        _ => Box::pin(one(0, 30)),
    }
}

const CALLERS: usize = 5;

type Steps = Vec<(usize, u64)>;

/// Generates a list of steps, and whether bodies take more than one poll. A step polls a caller, or acquires or drops a
/// guard. Each step includes the number of milliseconds that pass before it.
pub(crate) fn steps() -> impl Strategy<Value = (Steps, bool)> {
    let times = select(vec![0, 1, 700, 1999, 2001, 3100]);
    (vec((0..CALLERS + 2, times), 0..60), any::<bool>())
}

/// Returns a runtime with a paused clock, which advances only when no task can run.
pub(crate) fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    let builder = builder.enable_all().start_paused(true);
    builder.build().expect("a runtime can be built")
}

/// Polls the callers in the order of `steps`, and replaces each call that has ended by a new one. Polls no caller after
/// the last step. If `long` is not set, no body runs after the last step. A new caller must then get each lock of
/// `keys`, although the old callers are not polled.
pub(crate) async fn poll(client: &LockClient, steps: Steps, long: bool, keys: &[&str]) {
    let visits = Visits {
        long,
        ..Visits::default()
    };
    let mut calls: Vec<_> = (0..CALLERS).map(|who| call(client, &visits, who)).collect();
    let mut guards = [None, None];
    for (who, time) in steps {
        advance(Duration::from_millis(time)).await;
        if let Some(key) = who.checked_sub(CALLERS) {
            guards[key] = match guards[key].take() {
                Some(_) => None,
                None => client.lock(["a", "b"][key]).try_acquire().await.ok(),
            };
            continue;
        }
        let polled = poll_fn(|cx| Poll::Ready(calls[who].as_mut().poll(cx)));
        match polled.await {
            Poll::Ready(Ok(()) | Err(LockError::Busy { .. })) => {
                calls[who] = call(client, &visits, who);
            }
            Poll::Ready(Err(error)) => panic!("{error}"),
            Poll::Pending => {}
        }
    }
    drop(guards);
    if !long {
        // The bound is the sum of the longest `wait` for two locks (5 s), the claim (2 s) that follows this `wait`, and
        // one claim (2 s) for each caller.
        let longest = (5 + 2 * (1 + CALLERS as u32)) * SECOND;
        for key in keys {
            let lock = client.lock(*key).wait(longest);
            lock.run(async {}).await.unwrap();
        }
    }
    drop(calls);
    for key in ["a", "b"] {
        client.lock(key).wait(MS).run(async {}).await.unwrap();
    }
}
