//! What the engine runs on, as one value: a clock, a source of chance, a network and a thread.
//!
//! Everything that a blocked or finished user runtime must not stop runs on the engine's thread: renewals, clean-up,
//! the timers of deadlines. A client hands its [`Context`] down; nothing below it reaches for a static.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{backend::BoxFuture, lease::Moment, owner::OwnerId};
use once_cell::sync::Lazy;
use redis::{AsyncConnectionConfig, RedisResult, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinError, JoinHandle},
    time,
};
use uuid::Uuid;

use self::{
    clock::{BootClock, Clock},
    sync::lock,
};

pub(crate) mod clock;
pub(crate) mod shutdown;
pub(crate) mod sync;
pub(crate) mod thread;
pub(crate) mod watched;

/// How long a release that nobody awaits may be left to its caller's connection before the engine drives it.
const HANDOFF_DELAY: Duration = Duration::from_millis(5);

/// How much longer such a release may take on that connection.
const HANDOFF_PATIENCE: Duration = Duration::from_millis(20);

/// A source of random numbers.
pub(crate) trait Random: Send + Sync {
    /// 128 bits, of which 122 are random.
    fn bits(&self) -> u128;
}

/// The operating system's source.
struct SystemRandom;

impl Random for SystemRandom {
    fn bits(&self) -> u128 {
        Uuid::new_v4().as_u128()
    }
}

/// A way to connect to a Redis server.
pub(crate) trait Network: Send + Sync {
    fn connect<'a>(
        &'a self,
        client: &'a redis::Client,
        config: &'a AsyncConnectionConfig,
    ) -> BoxFuture<'a, RedisResult<MultiplexedConnection>>;
}

/// The sockets of the operating system.
struct SystemNetwork;

impl Network for SystemNetwork {
    fn connect<'a>(
        &'a self,
        client: &'a redis::Client,
        config: &'a AsyncConnectionConfig,
    ) -> BoxFuture<'a, RedisResult<MultiplexedConnection>> {
        Box::pin(client.get_multiplexed_async_connection_with_config(config))
    }
}

/// What the engine runs on.
pub(crate) struct Context {
    network: Box<dyn Network>,
    clock: Box<dyn Clock>,
    random: Box<dyn Random>,
    runtime: Handle,
    /// Futures that nobody awaits, and that are still to be finished.
    unfinished: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// The context of all clients of this process, with one thread, started at first use.
    pub(crate) fn of_process() -> &'static Arc<Self> {
        static CONTEXT: Lazy<Arc<Context>> = Lazy::new(|| {
            let runtime = thread::handle().clone();
            let clock = BootClock::new(runtime.clone());
            Arc::new(Context::new(
                Box::new(clock),
                Box::new(SystemRandom),
                Box::new(SystemNetwork),
                runtime,
            ))
        });
        &CONTEXT
    }

    pub(crate) fn new(
        clock: Box<dyn Clock>,
        random: Box<dyn Random>,
        network: Box<dyn Network>,
        runtime: Handle,
    ) -> Self {
        Self {
            network,
            clock,
            random,
            runtime,
            unfinished: Mutex::default(),
        }
    }

    /// The engine's own runtime.
    pub(crate) fn handle(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Ends at `deadline`. No user runtime has to have a timer for it, or time to poll one.
    pub(crate) fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(deadline)
    }

    /// Ends after `time`.
    pub(crate) fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + time)
    }

    /// Bounds `future`; `None` if `deadline` came first.
    pub(crate) async fn timeout_at<F: Future>(
        &self,
        deadline: Moment,
        future: F,
    ) -> Option<F::Output> {
        let timer = self.sleep_until(deadline);
        tokio::select! {
            biased;
            output = future => Some(output),
            () = timer => None,
        }
    }

    pub(crate) fn network(&self) -> &dyn Network {
        &*self.network
    }

    /// A number that nobody else has.
    pub(crate) fn unique(&self) -> u128 {
        self.random.bits()
    }

    /// The name of a new acquisition.
    pub(crate) fn new_owner(&self) -> OwnerId {
        OwnerId::from_u128(self.unique())
    }

    /// A random number, for pauses that shall differ.
    pub(crate) fn chance(&self) -> u32 {
        u32::try_from(self.random.bits() >> 96).unwrap_or_default()
    }

    /// Runs a future on the engine's thread, whatever becomes of the caller.
    pub(crate) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.spawn(future)
    }

    /// Runs a future on the engine's thread, however its caller is polled, until the caller drops this one.
    pub(crate) async fn run<F>(&self, future: F) -> Result<F::Output, JoinError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        struct AbortOnDrop(AbortHandle);
        impl Drop for AbortOnDrop {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let task = self.spawn(future);
        let _abort = AbortOnDrop(task.abort_handle());
        task.await
    }

    /// Finishes a future that nobody awaits. Most are done when the engine looks, a moment later: to wake the thread for
    /// each would cost more than all the rest.
    pub(crate) fn finish(self: &Arc<Self>, future: BoxFuture<'static, ()>) {
        let mut unfinished = lock(&self.unfinished);
        unfinished.push(future);
        if unfinished.len() == 1 {
            let context = self.clone();
            self.spawn(async move {
                time::sleep(HANDOFF_DELAY).await;
                for future in std::mem::take(&mut *lock(&context.unfinished)) {
                    // Dropped, it goes on by the engine's own connections: nobody may drive the caller's.
                    context.spawn(time::timeout(HANDOFF_PATIENCE, future));
                }
            });
        }
    }
}
