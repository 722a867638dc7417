//! Measures when each of many holds is renewed, and what the renewals cost.

use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockGuard};
use progress::{Progress, suspend};
use support::{sent::Sent, server::RedisServer};
use tokio::task::JoinSet;

use crate::{Scale, targets::Targets, threads};

/// The largest number of concurrent acquisitions.
const AT_ONCE: usize = 64;
/// The time between two checks of all holds.
const LOOK: Duration = Duration::from_millis(500);
/// The name of the engine's thread.
const ENGINE: &str = "lock-runtime";

/// Acquires `count` locks with separate keys, and returns their guards.
pub(crate) async fn take(client: &LockClient, count: usize, lease: Duration) -> Vec<LockGuard> {
    let mut taking = JoinSet::new();
    let mut guards = Vec::with_capacity(count);
    for number in 0..count {
        if taking.len() == AT_ONCE {
            guards.extend(
                taking
                    .join_next()
                    .await
                    .map(|guard| guard.expect("a guard")),
            );
        }
        let lock = client.lock(format!("account:{number}"));
        let lock = lock.lease(lease).renew(true).wait(Duration::from_secs(60));
        taking.spawn(async move { lock.acquire().await.expect("the lock is free") });
    }
    while let Some(guard) = taking.join_next().await {
        guards.push(guard.expect("a guard"));
    }
    guards
}

/// A hold, and the longest time between two of its renewals so far. A renewal sets the local deadline to the moment at
/// which the renewal was sent, plus one lease. The time between two renewals is therefore the difference of two
/// deadlines.
struct Watched {
    guard: LockGuard,
    deadline: Instant,
    worst: Duration,
}

impl Watched {
    fn of(guard: LockGuard) -> Self {
        let deadline = Instant::now() + guard.remaining();
        Self {
            guard,
            deadline,
            worst: Duration::ZERO,
        }
    }

    fn look(&mut self) {
        let deadline = Instant::now() + self.guard.remaining();
        let later = deadline.saturating_duration_since(self.deadline);
        if later > Duration::from_millis(5) {
            self.worst = self.worst.max(later);
            self.deadline = deadline;
        }
    }

    /// Ends the observation. The time since the last renewal counts as a time between two renewals.
    fn end(&mut self, lease: Duration) {
        self.look();
        let since = lease.saturating_sub(self.guard.remaining());
        self.worst = self.worst.max(since);
    }
}

pub(crate) async fn measure(
    server: &RedisServer,
    scale: Scale,
    targets: &mut Targets,
    progress: &Progress,
) {
    let Scale {
        holds, lease, span, ..
    } = scale;
    progress.begin(format_args!(
        "renewals of {holds} holds with a lease of {lease:?}"
    ));
    let client = LockClient::connect(server.url()).await.expect("a client");
    let began = Instant::now();
    let guards = take(&client, holds, lease).await;
    let took = began.elapsed();
    suspend(|| println!("{holds} locks taken in {took:.1?}"));
    let mut watched: Vec<_> = guards.into_iter().map(Watched::of).collect();
    // The measurement starts when the first renewals are due, which is a third of the lease after the grants.
    look_for(&mut watched, lease / 3).await;
    let (stats, sent) = (client.stats(), Sent::so_far(server, &[]).await);
    let (began, engine, process) = (
        Instant::now(),
        threads::of_thread(ENGINE),
        threads::of_process(),
    );
    look_for(&mut watched, span).await;
    let took = began.elapsed();
    let cores = |before: Option<Duration>, now: Option<Duration>| {
        let used = now?.saturating_sub(before?);
        Some(used.as_secs_f64() / took.as_secs_f64())
    };
    let engine = cores(engine, threads::of_thread(ENGINE));
    let process = cores(process, threads::of_process());
    let (now, sent) = (client.stats(), sent.since(server, &[]).await);
    watched.iter_mut().for_each(|hold| hold.end(lease));
    let renewed = (now.renewed - stats.renewed) as f64;
    let mut worst: Vec<_> = watched.iter().map(|hold| hold.worst).collect();
    worst.sort();
    let third = lease.as_secs_f64() / 3.0;
    let of_third = |gap: Duration| gap.as_secs_f64() / third;
    let (median, slowest) = (worst[worst.len() / 2], worst[worst.len() - 1]);
    suspend(|| {
        println!(
            "{:.0} renewals/s; longest time between two renewals of a hold: median {median:.3?}, worst {slowest:.3?}",
            renewed / took.as_secs_f64()
        );
        println!(
            "{:.4} commands per renewal, {:.2} µs of the server; {} renewals failed, {} leases lost",
            sent.commands as f64 / renewed,
            sent.micros as f64 / renewed,
            now.renewal_failed,
            now.lost
        );
    });
    targets.at_most(
        1.1,
        "longest time between renewals, in thirds of the lease",
        of_third(slowest),
    );
    if let (Some(engine), Some(process)) = (engine, process) {
        let each = |cores: f64| cores * took.as_secs_f64() * 1e6 / renewed;
        suspend(|| {
            println!(
                "engine's thread {:.2} % of a core, {:.2} µs per renewal; the process, which looks at all holds {:?} apart, {:.2} %",
                engine * 100.0,
                each(engine),
                LOOK,
                process * 100.0
            );
        });
        // The limits of 5 µs and of 5 % describe the same load. If 100,000 holds are renewed every 10 s, they need
        // 10,000 renewals a second. At 5 µs for each renewal, these renewals take 5 % of a core.
        targets.at_most(5.0, "engine's thread per renewal, µs", each(engine));
        if scale.holds == Scale::WHOLE.holds {
            targets.at_most(5.0, "engine's thread, % of a core", engine * 100.0);
        }
    }
    targets.lost += now.lost;
    drop(watched);
    client.shutdown().await;
}

async fn look_for(watched: &mut [Watched], span: Duration) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        tokio::time::sleep(LOOK.min(end.saturating_duration_since(Instant::now()))).await;
        watched.iter_mut().for_each(Watched::look);
    }
}
