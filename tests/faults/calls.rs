//! Row 7: a body's future dropped at each of its awaits. (Row 8 is `tests/drops.rs`, rows 6 and 34 are promises 9 and 7,
//! row 35 is promise 10.)

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

use lock_runtime::{Hold, LockError, distributed_lock};
use support::server::RedisServer;

use crate::scene::{client, epsilon, grant, left, until};

/// Five awaits inside the lock; says how many were passed.
#[distributed_lock(key = "k")]
async fn five_awaits(passed: &std::cell::Cell<usize>) -> Result<(), LockError> {
    for _ in 0..5 {
        tokio::task::yield_now().await;
        passed.set(passed.get() + 1);
    }
    Ok(())
}

#[tokio::test]
async fn row_07_body_dropped_at_each_await() {
    let server = RedisServer::start().await;
    let client = client(&server.url()).await;
    for at in 0..5 {
        let passed = std::cell::Cell::new(0);
        {
            let mut call = pin!(client.scope(five_awaits(&passed)));
            let mut inside = false;
            // Polled by hand until the body stands at this await.
            while !inside || passed.get() < at {
                let poll = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert_eq!(poll, Poll::Pending);
                inside = grant(&server).await.is_some();
            }
        }
        let dropped = Instant::now();
        assert!(Hold::current().is_none());
        until(async || left(&server).await.is_empty()).await;
        assert!(dropped.elapsed() < epsilon(), "{:?}", dropped.elapsed());
    }
}
