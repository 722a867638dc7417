//! The environment of the engine as one value: a clock, a source of random numbers, a network and a thread.
//!
//! Renewals, clean-up and the timers of deadlines run on the engine's thread, because they must continue when a user's
//! runtime is blocked or has ended. A client passes its [`Context`] to the layers below it, so that these layers need
//! no static variables.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use foldhash::HashMap;
use lock_core::{backend::BoxFuture, lease::Moment, owner::OwnerId};
use once_cell::sync::Lazy;
use tokio::{
    runtime::{self, Builder, Handle},
    task::{AbortHandle, JoinError, JoinHandle},
    time,
};
use uuid::Uuid;

use self::clock::{BootClock, Clock};
use tokio_util::sync::CancellationToken;
pub(crate) use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken as TrackedTask};

#[cfg(feature = "redis")]
use self::network::{Network, SystemNetwork};
use crate::limits;
pub(crate) mod clock;
pub(crate) mod driven;
#[cfg(feature = "redis")]
pub(crate) mod network;
pub(crate) mod parking;
pub(crate) mod runtimes;
pub(crate) mod watched;
#[cfg(feature = "__simulation")]
pub(crate) mod world;

/// A signal that a shutdown has begun. Each poll of an acquisition checks the signal, so the check must be cheap: it
/// locks no mutex, unlike the check of a [`CancellationToken`].
#[derive(Debug, Default)]
pub(crate) struct ShutdownSignal {
    has_begun: AtomicBool,
    token: CancellationToken,
}

impl ShutdownSignal {
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
        self.token.cancel();
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Completes when the shutdown has begun.
    pub(crate) async fn begun(&self) {
        self.token.cancelled().await;
    }
}

/// Returns a handle to the runtime that runs on the engine's thread. A process has one engine thread, which starts when
/// this function is first called.
pub(crate) fn engine() -> &'static Handle {
    static ENGINE: Lazy<Handle> = Lazy::new(start_engine);
    &ENGINE
}

/// The process that has started the engine's thread.
static STARTED_BY: OnceLock<u32> = OnceLock::new();

/// Returns whether this process was forked after the engine's thread had started. Such a process has no such thread.
pub(crate) fn is_forked() -> bool {
    let started_by = STARTED_BY.get();
    started_by.is_some_and(|process| *process != process::id())
}

/// The reason why a forked process can use no server.
pub(crate) const FORKED: &str = "this process was forked after the lock engine had started: fork before the first client is made";

fn start_engine() -> Handle {
    STARTED_BY.get_or_init(process::id);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the operating system gives the lock engine an event loop");
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("lock-runtime".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .expect("the operating system gives the lock engine a thread");
    handle
}

/// Locks a mutex, and ignores poisoning. Ignoring poisoning is safe, because no panic in the engine leaves the data in
/// a mutex half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a step that can run code of the user: a layer of `tracing`, a recorder of metrics, a hook, or a waker. A waker can
/// poll its caller at once, and the caller can drop its body. Returns `None` if the step panics, so that the engine's other
/// work goes on. The panic hook has already reported the panic.
pub(crate) fn isolated<T>(step: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(step)).ok()
}

/// Waits until all of `tasks` have ended. New tasks can start during the wait and afterwards.
pub(crate) async fn drained(tasks: &TaskTracker) {
    tasks.close();
    tasks.wait().await;
}

/// Returns the ID of the tokio runtime on which this function is called; `None` outside of a runtime.
pub(crate) fn calling_runtime() -> Option<runtime::Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// Identifies a tokio runtime. A simulated process has several runtimes within one real runtime; their numbers tell them
/// apart.
pub(crate) type RuntimeId = (runtime::Id, u32);

/// The runtimes that the engine has asked and that have not answered yet, each with the moment of the question.
type AskedRuntimes = Arc<Mutex<HashMap<RuntimeId, Moment>>>;

/// A tokio runtime on which the engine spawns tasks: the engine's own runtime, or a runtime that polls callers.
#[derive(Debug, Clone)]
pub(crate) struct TaskRuntime {
    handle: Handle,
    /// The number of a simulated runtime; the engine's own runtime has the number 0.
    number: u32,
}

impl TaskRuntime {
    pub(crate) fn id(&self) -> RuntimeId {
        (self.handle.id(), self.number)
    }
}

/// The tokio runtime that polled a caller, and the moment of this poll.
#[derive(Debug, Clone)]
pub(crate) struct Polled {
    pub(crate) on: TaskRuntime,
    pub(crate) at: Moment,
}

/// A source of random numbers.
pub(crate) trait Random: Send + Sync {
    /// Returns 128 bits, of which 122 are random.
    fn bits(&self) -> u128;
}

/// The operating system's source of random numbers.
struct SystemRandom;

impl Random for SystemRandom {
    fn bits(&self) -> u128 {
        Uuid::new_v4().as_u128()
    }
}

/// The process in which the engine runs, as it is reported to other processes.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) host: String,
    pub(crate) pid: u32,
}

impl Process {
    pub(crate) fn current() -> Self {
        Self {
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            pid: std::process::id(),
        }
    }
}

/// The environment of the engine as one value.
pub(crate) struct Context {
    pub(crate) process: Process,
    #[cfg(feature = "redis")]
    network: Box<dyn Network>,
    clock: Box<dyn Clock>,
    random: Box<dyn Random>,
    runtime: Handle,
    /// The simulated world; `None` if the client runs outside of a simulation.
    #[cfg(feature = "__simulation")]
    pub(crate) world: Option<Arc<dyn world::World>>,
    /// The futures that were passed to [`finish`](Self::finish), and that the engine has not polled yet.
    unfinished: Mutex<Vec<BoxFuture<'static, ()>>>,
    /// The first half of the id of the first session.
    first_session: OnceLock<u128>,
    /// The runtimes of callers that the engine has asked whether they run (see [`runtimes`]).
    asked: AskedRuntimes,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Returns the context that the clients of this process share. The engine's thread starts at the first call of this
    /// function.
    pub(crate) fn of_process() -> &'static Arc<Self> {
        static CONTEXT: Lazy<Arc<Context>> = Lazy::new(|| {
            let runtime = engine().clone();
            let clock = BootClock::new(runtime.clone());
            Arc::new(Context::new(
                Process::current(),
                Box::new(clock),
                Box::new(SystemRandom),
                #[cfg(feature = "redis")]
                Box::new(SystemNetwork),
                runtime,
            ))
        });
        &CONTEXT
    }

    pub(crate) fn new(
        process: Process,
        clock: Box<dyn Clock>,
        random: Box<dyn Random>,
        #[cfg(feature = "redis")] network: Box<dyn Network>,
        runtime: Handle,
    ) -> Self {
        Self {
            process,
            #[cfg(feature = "redis")]
            network,
            clock,
            random,
            runtime,
            #[cfg(feature = "__simulation")]
            world: None,
            unfinished: Mutex::default(),
            first_session: OnceLock::new(),
            asked: AskedRuntimes::default(),
        }
    }

    /// Whether the process is simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(feature = "__simulation")]
        return self.world.is_some();
        #[cfg(not(feature = "__simulation"))]
        false
    }

    /// Returns the engine's runtime.
    pub(crate) fn handle(&self) -> &Handle {
        &self.runtime
    }

    /// Returns the runtime that polls the calling task, and the present moment; `None` outside of a runtime.
    pub(crate) fn polled(&self) -> Option<Polled> {
        let handle = Handle::try_current().ok()?;
        #[cfg(feature = "__simulation")]
        let number = self.world.as_ref().map_or(0, |world| world.runtime());
        #[cfg(not(feature = "__simulation"))]
        let number = 0;
        Some(Polled {
            on: TaskRuntime { handle, number },
            at: self.now(),
        })
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Completes at `deadline`. The timer runs on the engine's runtime, because a user's runtime might have no timers,
    /// or be blocked.
    pub(crate) fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(deadline)
    }

    /// Completes after `time`.
    pub(crate) fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + time)
    }

    /// Waits for `future`, but no longer than until `deadline`. Returns `None` if `deadline` comes first.
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

    #[cfg(feature = "redis")]
    pub(crate) fn network(&self) -> &dyn Network {
        &*self.network
    }

    /// Returns a random number that is unique across all processes.
    pub(crate) fn unique(&self) -> u128 {
        self.random.bits()
    }

    /// Returns the random id of a new session. The ids of all sessions of this process begin with the same digits, so
    /// that a script can remove the waiters of a stopped process.
    pub(crate) fn new_session_id(&self) -> String {
        let bits = self.unique();
        let process = self.first_session.get_or_init(|| bits >> 64);
        format!("{process:016x}{:016x}", bits & u128::from(u64::MAX))
    }

    /// Returns the random name under which a new acquisition is known to the server.
    pub(crate) fn new_owner(&self) -> OwnerId {
        OwnerId::from_u128(self.unique())
    }

    /// Returns a random number. Callers use this number to vary the length of their pauses.
    pub(crate) fn chance(&self) -> u32 {
        u32::try_from(self.random.bits() >> 96).unwrap_or_default()
    }

    /// Runs a future on the engine's thread. The future continues even if its caller ends.
    pub(crate) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let engine = TaskRuntime {
            handle: self.runtime.clone(),
            number: 0,
        };
        self.spawn_on(&engine, future)
    }

    /// Runs a future on `runtime`, which can be a user's runtime.
    pub(crate) fn spawn_on<F>(&self, runtime: &TaskRuntime, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(feature = "__simulation")]
        let future = world::while_running(self.world.clone(), runtime.number, future);
        let task = runtime.handle.spawn(future);
        #[cfg(feature = "__simulation")]
        if let (Some(world), number @ 1..) = (&self.world, runtime.number) {
            world.abort_with(number, task.abort_handle());
        }
        task
    }

    /// Runs `future` on the engine's thread, so that `future` proceeds even if the caller is rarely polled. Dropping
    /// the returned future aborts `future`.
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

    /// Polls a future that no caller awaits. The engine collects such futures for [`limits::HANDOFF_DELAY`] before it first polls
    /// them, because most of them are ready after this delay. Waking the engine's thread for each future separately would
    /// cost more than all other work for the futures.
    pub(crate) fn finish(self: &Arc<Self>, future: BoxFuture<'static, ()>) {
        let mut unfinished = lock(&self.unfinished);
        unfinished.push(future);
        if unfinished.len() == 1 {
            let context = self.clone();
            self.spawn(async move {
                time::sleep(limits::HANDOFF_DELAY).await;
                for future in std::mem::take(&mut *lock(&context.unfinished)) {
                    context.spawn(future);
                }
            });
        }
    }
}
