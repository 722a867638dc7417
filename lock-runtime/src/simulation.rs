//! Lets the project's simulation run a client in a simulated world. Not public API.

use std::sync::Arc;

pub use lock_core::{backend::BoxFuture, lease::Moment};
use redis::{AsyncConnectionConfig, RedisResult, aio::MultiplexedConnection};
use tokio::runtime::Handle;

use crate::{
    background::{Context, Network, Random, clock::Clock},
    client::builder::LockClientBuilder,
};

/// The parts of the environment that the engine depends on: the clock, random numbers and the network.
pub trait World: Send + Sync {
    /// Returns the time of the process's local clock.
    fn now(&self) -> Moment;

    /// Completes when the local clock reaches `deadline`.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;

    /// Returns 128 random bits.
    fn random(&self) -> u128;

    /// Connects to a server.
    fn connect<'a>(
        &'a self,
        client: &'a redis::Client,
        config: &'a AsyncConnectionConfig,
    ) -> BoxFuture<'a, RedisResult<MultiplexedConnection>>;
}

/// Makes the builder's client use `world` as its environment. The client's engine runs on the caller's runtime.
pub fn in_world(mut builder: LockClientBuilder, world: Arc<dyn World>) -> LockClientBuilder {
    let context = Context::new(
        Box::new(InWorld(world.clone())),
        Box::new(InWorld(world.clone())),
        Box::new(InWorld(world)),
        Handle::current(),
    );
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
