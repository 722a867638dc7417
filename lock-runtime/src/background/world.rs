//! The environment of a simulated process: its clock, its random numbers and its network.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::Arc,
    task::{self, Poll, ready},
};

use lock_core::{backend::BoxFuture, lease::Moment};
use redis::ConnectionAddr;
use tokio::task::AbortHandle;

use crate::background::network::Socket;

/// The environment of a simulated process, as far as the engine depends on it: the clock, random numbers and the
/// network.
pub trait World: Send + Sync {
    /// Returns the time of the simulated process's local clock.
    fn now(&self) -> Moment;

    /// Completes when the local clock reaches `deadline`.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;

    /// Returns 128 random bits.
    fn random(&self) -> u128;

    /// Returns the number of the simulated process's runtime that polls the calling task. The engine's own runtime has
    /// the number 0.
    fn runtime(&self) -> u32;

    /// Connects to a Redis server.
    fn connect<'a>(&'a self, address: &'a ConnectionAddr) -> BoxFuture<'a, io::Result<Socket>>;

    /// Returns `Ready` if the simulated process and its runtime with this number run. If one of them is stopped, returns
    /// `Pending`, and wakes the task when both run again.
    fn poll_running(&self, runtime: u32, cx: &mut task::Context<'_>) -> Poll<()>;

    /// Calls `poll` on the simulated process's runtime with this number.
    fn on_runtime(&self, runtime: u32, poll: &mut dyn FnMut());

    /// Aborts this task when the simulated process's runtime with this number ends.
    fn abort_with(&self, runtime: u32, task: AbortHandle);
}

/// Polls `future` on the runtime with this number, and only while the process of `world` and the runtime run.
pub(crate) async fn while_running<F: Future>(
    world: Option<Arc<dyn World>>,
    runtime: u32,
    future: F,
) -> F::Output {
    let Some(world) = world else {
        return future.await;
    };
    let mut future = pin!(future);
    poll_fn(|cx| {
        ready!(world.poll_running(runtime, cx));
        let mut polled = Poll::Pending;
        world.on_runtime(runtime, &mut || polled = future.as_mut().poll(cx));
        polled
    })
    .await
}
