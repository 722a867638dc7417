//! Counts what one client costs: its connections, if 1, 4 and 8 tokio runtimes use it, and the allocations and system
//! calls of one lock and unlock that nobody contends. `tools/size.sh` runs this program.
//!
//! The program starts a Redis server. It counts the system calls of a second process, which strace runs.

use std::{alloc::System, iter::repeat_with, process::Command, time::Duration};

use lock_runtime::LockClient;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::server::{RedisServer, is_installed};
use tokio::runtime::{Builder, Runtime};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The number of locks over which the program takes a mean.
const LOCKS: usize = 2_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let home = runtime();
    if let [url, locks] = &args[..] {
        let locks = locks.parse().expect("the second argument is a number");
        return home.block_on(async { lock_and_unlock(&connect(url).await, locks).await });
    }
    let server = home.block_on(RedisServer::start());
    for runtimes in [1, 4, 8] {
        let connections = connections(&home, &server, runtimes);
        println!("connections of one client, used from {runtimes} runtimes: {connections}");
    }
    let (allocations, bytes) = home.block_on(allocated(&server.url()));
    println!("allocations of a lock and unlock: {allocations:.1}, {bytes:.0} bytes");
    if is_installed("strace") {
        let calls = system_calls(&server.url(), LOCKS + 1) - system_calls(&server.url(), 1);
        println!(
            "system calls of a lock and unlock: {:.1}",
            mean(calls, LOCKS)
        );
    } else {
        println!("system calls of a lock and unlock: not counted, because strace is missing");
    }
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("the tokio runtime can be built")
}

async fn connect(url: &str) -> LockClient {
    let client = LockClient::builder().url(url);
    let client = client.connect_within(support::PATIENCE).await;
    client.expect("the server accepts the client")
}

async fn lock_and_unlock(client: &LockClient, locks: usize) {
    for _ in 0..locks {
        let entered = client.lock("k").run(async {}).await;
        entered.expect("the lock is free");
    }
}

/// Returns the number of connections of a client. Each runtime takes a free lock, and waits for a lock that is taken.
fn connections(home: &Runtime, server: &RedisServer, runtimes: usize) -> usize {
    home.block_on(support::until(async || server.client_count().await == 0));
    let client = home.block_on(connect(&server.url()));
    let users: Vec<Runtime> = repeat_with(runtime).take(runtimes).collect();
    let guard = users[0].block_on(client.lock("taken").acquire());
    let guard = guard.expect("the lock is free");
    for user in &users {
        user.block_on(lock_and_unlock(&client, 1));
        let waiting = client.lock("taken").wait(Duration::from_millis(50));
        let busy = user.block_on(waiting.run(async {}));
        busy.expect_err("the lock is taken");
    }
    // The server can still count the connection of an earlier question.
    let counts = (0..5).map(|_| home.block_on(server.client_count()));
    let connections = counts.min().unwrap_or_default();
    users[0].block_on(guard.release());
    home.block_on(client.shutdown());
    connections
}

/// Returns the mean number of allocations of a lock and unlock, and the bytes. The engine's thread counts too.
async fn allocated(url: &str) -> (f64, f64) {
    let client = connect(url).await;
    lock_and_unlock(&client, LOCKS).await;
    let region = Region::new(ALLOCATOR);
    lock_and_unlock(&client, LOCKS).await;
    let change = region.change();
    let allocations = change.allocations + change.reallocations;
    (
        mean(allocations, LOCKS),
        mean(change.bytes_allocated, LOCKS),
    )
}

/// Returns the number of system calls of a process that connects, and then locks and unlocks this many times.
fn system_calls(url: &str, locks: usize) -> usize {
    let program = std::env::current_exe().expect("the path of this program is known");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-qq"]).arg(program);
    let output = strace.args([url, &locks.to_string()]).output();
    let output = output.expect("strace can be started");
    let report = String::from_utf8_lossy(&output.stderr);
    let total = report.lines().find(|line| line.ends_with(" total"));
    let calls = total.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    calls.unwrap_or_else(|| panic!("strace has counted nothing: {report}"))
}

#[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
fn mean(sum: usize, count: usize) -> f64 {
    sum as f64 / count as f64
}
