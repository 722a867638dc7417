//! The interface by which the project's simulation (`tests/simulation`) runs a client with a simulated clock and
//! network. This module is not public API.

use std::{io, sync::Arc};

use lock_core::options::Mode;
pub use lock_core::{backend::BoxFuture, lease::Moment};
use redis::ConnectionAddr;
use tokio::runtime::Handle;

pub use crate::background::{
    network::{Socket, TryWrite},
    world::World,
};
use crate::{
    background::{Context, Process, Random, clock::Clock, network::Network},
    client::builder::LockClientBuilder,
    lock::Lock,
};

/// Makes the builder's client use `world` as its environment. The client's engine runs on the caller's runtime.
pub fn in_world(mut builder: LockClientBuilder, world: Arc<dyn World>) -> LockClientBuilder {
    // The host and the process id are the same in each run, so that a seed gives the same history on every machine.
    let process = Process {
        host: "simulated".into(),
        pid: 1,
    };
    let mut context = Context::new(
        process,
        Box::new(InWorld(world.clone())),
        Box::new(InWorld(world.clone())),
        Box::new(InWorld(world.clone())),
        Handle::current(),
    );
    context.world = Some(world);
    builder.context = Some(Arc::new(context));
    builder
}

/// Makes the lock a semaphore of this many permits, of which the caller takes `take`. The lock keeps its name, so that the
/// simulation knows it.
pub fn with_permits(mut lock: Lock, take: u32, of: u32) -> Lock {
    lock.settings.options.mode = Mode::Permits { take, of };
    lock
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
    fn connect<'a>(&'a self, address: &'a ConnectionAddr) -> BoxFuture<'a, io::Result<Socket>> {
        self.0.connect(address)
    }
}
