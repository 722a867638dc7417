//! A process: a client on a host that has its own clock.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ::redis::ConnectionAddr;
use lock_core::{backend::BoxFuture, lease::Moment};
use lock_runtime::{
    ConnectError, Layout, LockClient,
    simulation::{Socket, World, in_world},
};
use tokio::{
    task::AbortHandle,
    task_local,
    time::{Instant, interval, sleep_until},
};

use crate::{
    chance::Chance,
    network::{HostId, Network, ServerId},
    plan::{GROUP, Plan, Store},
    stop::StopSignal,
};

/// The time that each host's clock shows at the beginning of a run.
const BOOTED: Duration = Duration::from_secs(1_000);

task_local! {
    /// The number of the runtime on which the current task runs. The engine runs on runtime 0.
    static RUNTIME: u32;
}

/// Runs `future` on the runtime with this number.
pub fn on_runtime<F: Future>(number: u32, future: F) -> impl Future<Output = F::Output> {
    RUNTIME.scope(number, future)
}

/// The longest pause between two polls of a call that is polled on two runtimes in turn.
const IN_TURN: Duration = Duration::from_millis(3);

/// Polls `future` on one runtime of a process and at once on the other one, also when the future has not been woken.
pub async fn on_both_runtimes<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut tick = interval(IN_TURN);
    poll_fn(|cx| {
        let mut poll_on = |number| RUNTIME.sync_scope(number, || future.as_mut().poll(cx));
        let mut polled = poll_on(1);
        if polled.is_pending() {
            polled = poll_on(0);
        }
        while polled.is_pending() && tick.poll_tick(cx).is_ready() {}
        polled
    })
    .await
}

/// The clock, the random numbers and the network that an engine on this host uses.
struct Host {
    number: HostId,
    network: Network,
    chance: Chance,
    began: Instant,
    /// How much too fast the host's clock runs, in millionths. The value is negative if the clock runs too slowly.
    drift: i64,
    stop: StopSignal,
}

impl Host {
    /// Returns the time that this host's clock measures while `passed` elapses in the world.
    fn local(&self, passed: Duration) -> Duration {
        scaled(passed, 1_000_000 + self.drift, 1_000_000)
    }

    fn in_world(&self, passed: Duration) -> Duration {
        scaled(passed, 1_000_000, 1_000_000 + self.drift)
    }
}

fn scaled(time: Duration, by: i64, of: i64) -> Duration {
    let nanos = time.as_nanos() * u128::from(by.unsigned_abs()) / u128::from(of.unsigned_abs());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl World for Host {
    fn now(&self) -> Moment {
        Moment::new(BOOTED + self.local(self.began.elapsed()))
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let passed = deadline.since(Moment::new(BOOTED));
        let mut elapsed = self.in_world(passed);
        // Rounding must not end the sleep before the host's clock shows `deadline`: a loop that sleeps until then would
        // never end, because the world's clock stands still while a task runs.
        if self.local(elapsed) < passed {
            elapsed += Duration::from_nanos(1);
        }
        match self.began.checked_add(elapsed) {
            Some(at) => Box::pin(sleep_until(at)),
            None => Box::pin(std::future::pending()),
        }
    }

    fn random(&self) -> u128 {
        self.chance.bits()
    }

    fn runtime(&self) -> u32 {
        RUNTIME.try_with(|number| *number).unwrap_or_default()
    }

    fn connect<'a>(&'a self, address: &'a ConnectionAddr) -> BoxFuture<'a, io::Result<Socket>> {
        Box::pin(async move {
            let server = server_of(address)?;
            let stream = self.network.connect(self.number, server).await?;
            let try_write = stream.try_write();
            let (read, write) = tokio::io::split(stream);
            Ok(Socket {
                read: Box::new(read),
                write: Box::new(write),
                try_write,
            })
        })
    }

    fn poll_running(&self, runtime: u32, cx: &mut Context<'_>) -> Poll<()> {
        self.stop.poll_running(runtime, cx)
    }

    fn on_runtime(&self, runtime: u32, poll: &mut dyn FnMut()) {
        RUNTIME.sync_scope(runtime, poll);
    }

    fn abort_with(&self, runtime: u32, task: AbortHandle) {
        self.stop.abort_with(runtime, task);
    }
}

/// Returns the address of a server.
#[must_use]
pub fn address_of(server: ServerId) -> String {
    format!("server-{server}:6379")
}

fn server_of(address: &ConnectionAddr) -> io::Result<ServerId> {
    let ConnectionAddr::Tcp(host, _) = address else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let number = host.strip_prefix("server-").and_then(|n| n.parse().ok());
    number.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Starts a process by connecting its client.
///
/// # Errors
/// If the client cannot connect.
pub async fn start(
    host: HostId,
    network: &Network,
    chance: Chance,
    drift: i64,
    plan: &Plan,
    stop: StopSignal,
) -> Result<LockClient, ConnectError> {
    let world = Host {
        number: host,
        network: network.clone(),
        chance,
        began: network.began(),
        drift,
        stop,
    };
    let store = plan.store;
    let (scheme, servers, path) = match store {
        Store::Redis | Store::Redisson => ("redis", 0..1, ""),
        Store::Redlock => ("redlock", 0..store.servers(), ""),
        Store::Group { .. } => {
            let sentinels = store.servers()..store.servers() + store.sentinels();
            ("redis+sentinel", sentinels, GROUP)
        }
        Store::Cluster { .. } => ("redis+cluster", 0..3, ""),
    };
    let servers: Vec<String> = servers.map(address_of).collect();
    let mut builder = LockClient::builder()
        .url(format!("{scheme}://{}/{path}", servers.join(",")))
        .wait(Duration::from_secs(5));
    if store == Store::Redisson {
        builder = builder.layout(Layout::Redisson);
    }
    if let Some(lease) = plan.only_lease_of(host) {
        builder = builder.lease(lease);
    }
    if plan.replicas > 0 {
        builder = builder.replicas(plan.replicas, Duration::from_secs(1));
    }
    in_world(builder, Arc::new(world)).connect().await
}
