//! The environment of a simulated process: its clock, its random numbers and its network.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{self, Poll, ready},
};

use lock_core::{backend::BoxFuture, lease::Moment};
use redis::{AsyncConnectionConfig, RedisResult, aio::MultiplexedConnection};

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
    fn connect<'a>(
        &'a self,
        client: &'a redis::Client,
        config: &'a AsyncConnectionConfig,
    ) -> BoxFuture<'a, RedisResult<MultiplexedConnection>>;

    /// Returns `Ready` if the simulated process runs. If this process is stopped, returns `Pending`, and wakes the task
    /// when the process continues.
    fn poll_running(&self, cx: &mut task::Context<'_>) -> Poll<()>;
}

/// Polls `future` only while the process of `world` runs.
pub(crate) async fn while_running<F: Future>(
    world: Option<Arc<dyn World>>,
    future: F,
) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Some(world) = &world {
            ready!(world.poll_running(cx));
        }
        future.as_mut().poll(cx)
    })
    .await
}
