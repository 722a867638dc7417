//! The interface by which the project's simulation (`tests/simulation`) runs a client with a simulated clock and
//! network. This module is not public API.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{self, Poll, ready},
};

pub use lock_core::{backend::BoxFuture, lease::Moment};
use redis::{AsyncConnectionConfig, RedisResult, aio::MultiplexedConnection};
use tokio::runtime::Handle;

use crate::{
    background::{Context, Network, Random, clock::Clock},
    client::builder::LockClientBuilder,
};

/// The parts of the environment that the engine depends on: the clock, random numbers and the network.
pub trait World: Send + Sync {
    /// Returns the time of the simulated process's local clock.
    fn now(&self) -> Moment;

    /// Completes when the local clock reaches `deadline`.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;

    /// Returns 128 random bits.
    fn random(&self) -> u128;

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

/// Makes the builder's client use `world` as its environment. The client's engine runs on the caller's runtime.
pub fn in_world(mut builder: LockClientBuilder, world: Arc<dyn World>) -> LockClientBuilder {
    let mut context = Context::new(
        Box::new(InWorld(world.clone())),
        Box::new(InWorld(world.clone())),
        Box::new(InWorld(world.clone())),
        Handle::current(),
    );
    context.world = Some(world);
    builder.context = Some(Arc::new(context));
    builder
}

struct InWorld(Arc<dyn World>);

impl Clock for InWorld {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline)
    }
}

impl Random for InWorld {
    fn bits(&self) -> u128 {
        self.0.random()
    }
}

impl Network for InWorld {
    fn connect<'a>(
        &'a self,
        client: &'a redis::Client,
        config: &'a AsyncConnectionConfig,
    ) -> BoxFuture<'a, RedisResult<MultiplexedConnection>> {
        self.0.connect(client, config)
    }
}
