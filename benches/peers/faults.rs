//! The faults of the benchmark: callers that are dropped, work that outlasts its lease, and a lock that is deleted.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use serde::Serialize;
use support::server::RedisServer;
use tokio::sync::Notify;

use crate::{
    candidates::{Cycle, Seat},
    clock::now,
    jvm::{Asking, Redisson},
    peer::{Peer, Terms, Told},
    runs::fresh_key,
};

/// The number of callers that are dropped while they acquire. Each caller gets slightly more time than the previous
/// caller.
const ASKING: u32 = 1000;
/// The time after which the last of the `ASKING` callers is dropped.
const LATEST: Duration = Duration::from_micros(500);

/// The number of callers that are dropped while they hold the lock.
const HOLDING: u32 = 100;

/// The time that a lock gets to clean up after dropped callers. The time for the clean-up is far shorter than the
/// lease, so no key disappears only because its lease ends.
const SETTLING: Duration = Duration::from_secs(1);

/// The lease in the tests in which the work takes longer than the lease. The lease is not shorter, because rslock
/// renews only half a second before a lease ends.
const LEASE: Duration = Duration::from_secs(2);
/// The length of the work: three times the lease.
const WORK: Duration = Duration::from_secs(6);

/// The time for which a holder works before the benchmark deletes the holder's lock.
const TAKEN_AFTER: Duration = Duration::from_millis(500);

/// The number of keys that dropped callers have left on the server (`left`), and the number of dropped callers
/// (`dropped`).
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Leak {
    pub(crate) left: usize,
    pub(crate) dropped: usize,
}

impl Leak {
    /// Waits for `SETTLING`, and then counts the keys with this marker in their names.
    async fn count(server: &RedisServer, marker: &str, dropped: usize) -> Self {
        tokio::time::sleep(SETTLING).await;
        let keys = server.keys().await;
        let left = keys.iter().filter(|key| key.contains(marker)).count();
        Self { left, dropped }
    }

    pub(crate) fn describe(self) -> String {
        format!("{} of {}", self.left, self.dropped)
    }
}

/// Returns seats (the names that a task uses) at separate keys. The names of the keys have a common marker.
fn marked(marker: &str, count: u32) -> Vec<Seat> {
    (0..count)
        .map(|i| Seat::at(&format!("{marker}-{i}")))
        .collect()
}

/// Requests a lock, and drops the call if its body has not begun within `time`. Returns whether the call was dropped.
/// The function polls the call in a busy loop, because a timer is not precise enough.
async fn drop_after(peer: &mut Peer, seat: &Seat, time: Duration) -> bool {
    let entered = AtomicBool::new(false);
    let body = async { entered.store(true, Ordering::SeqCst) };
    let mut asking = pin!(peer.cycle(seat, u64::MAX, body));
    let since = Instant::now();
    poll_fn(|context| {
        if asking.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        if entered.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        if since.elapsed() >= time {
            return Poll::Ready(true);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Drops each caller after a time between 0 and 500 µs, unless the caller has the lock by then. Counts the keys that
/// the dropped callers leave behind.
pub(crate) async fn while_acquiring(server: &RedisServer, peer: &Peer) -> Leak {
    let marker = fresh_key();
    let (mut peer, seats) = (peer.clone(), marked(&marker, ASKING));
    let dropping = tokio::spawn(async move {
        let mut dropped = 0;
        for (seat, i) in seats.iter().zip(0..) {
            dropped += usize::from(drop_after(&mut peer, seat, LATEST * i / ASKING).await);
        }
        dropped
    });
    let dropped = dropping
        .await
        .expect("the task that drops the callers does not panic");
    Leak::count(server, &marker, dropped).await
}

/// Cancels each asynchronous call of Redisson after a time between 0 and 500 µs, unless the call has ended by then.
/// Counts the keys that the cancelled calls leave behind.
pub(crate) async fn while_redisson_acquires(
    server: &RedisServer,
    redisson: &mut Redisson,
    asking: Asking,
) -> Leak {
    let marker = fresh_key();
    let seats = marked(&marker, ASKING);
    let cancelled = redisson.cancel(asking, LATEST / ASKING, &seats);
    Leak::count(server, &marker, cancelled as usize).await
}

/// Drops callers while they hold the lock. Counts the keys that the dropped callers leave behind.
pub(crate) async fn while_holding(server: &RedisServer, peer: &Peer) -> Leak {
    let marker = fresh_key();
    let (mut peer, seats) = (peer.clone(), marked(&marker, HOLDING));
    let dropped = seats.len();
    let dropping = tokio::spawn(async move {
        for seat in &seats {
            let entered = Notify::new();
            let body = async {
                entered.notify_one();
                pending::<()>().await;
            };
            tokio::select! {
                _ = peer.cycle(seat, u64::MAX, body) => unreachable!("the body does not end"),
                () = entered.notified() => {}
            }
        }
    });
    dropping
        .await
        .expect("the task that drops the holders does not panic");
    Leak::count(server, &marker, dropped).await
}

/// The result of a contest between a holder and a second caller that waits for the lock. The holder works for longer
/// than its lease, or the benchmark deletes the holder's lock.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Contest {
    pub(crate) told: Told,
    /// The number of seconds during which both callers were inside the lock.
    pub(crate) overlap_s: f64,
    /// The number of seconds from the holder's entry until its work ended or was stopped.
    pub(crate) worked_s: f64,
}

/// A value that stores the time at which it is dropped.
struct UntilDrop<'a>(&'a AtomicU64);

impl Drop for UntilDrop<'_> {
    fn drop(&mut self) {
        self.0.store(now(), Ordering::SeqCst);
    }
}

/// Lets a holder work for three leases while another caller waits. If `taken` is set, deletes the holder's lock during
/// the work.
async fn contest(server: &RedisServer, peer: Peer, renew: bool, taken: bool) -> Contest {
    let peer = peer.with_lease(&server.url(), LEASE).await;
    let terms = Terms {
        lease: LEASE,
        renew,
    };
    let key = fresh_key();
    let (entered, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let inside = Arc::new(Notify::new());
    let first = tokio::spawn({
        let (peer, key, inside) = (peer.clone(), key.clone(), inside.clone());
        let (entered, ended) = (entered.clone(), ended.clone());
        async move {
            let work = async {
                entered.store(now(), Ordering::SeqCst);
                let _until = UntilDrop(&ended);
                inside.notify_one();
                tokio::time::sleep(WORK).await;
            };
            peer.work(&key, terms, work).await
        }
    });
    inside.notified().await;
    // No caller waits yet, so all keys with this marker in their names belong to the holder.
    let keys = server.keys().await;
    let keys: Vec<_> = keys.iter().filter(|name| name.contains(&key)).collect();
    let second = tokio::spawn(async move {
        let mut entered = 0;
        peer.work(&key, terms, async { entered = now() }).await;
        entered
    });
    if taken {
        tokio::time::sleep(TAKEN_AFTER).await;
        let mut connection = server.connection().await;
        let deleted: redis::RedisResult<()> = redis::cmd("DEL")
            .arg(keys)
            .query_async(&mut connection)
            .await;
        deleted.expect("the lock is deleted");
    }
    let told = first.await.expect("the holder's task does not panic");
    let second = second.await.expect("the waiter's task does not panic");
    let [entered, ended] = [entered, ended].map(|time| time.load(Ordering::SeqCst));
    let seconds = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from)).as_secs_f64();
    Contest {
        told,
        overlap_s: seconds(second, ended),
        worked_s: seconds(entered, ended),
    }
}

/// Runs both contests concurrently. Returns two results. In the first contest, the work takes longer than the lease; in
/// the second contest, the lock is deleted.
pub(crate) async fn contests(server: &RedisServer, peer: &Peer, renew: bool) -> [Contest; 2] {
    let of = |taken| contest(server, peer.clone(), renew, taken);
    let (outlasted, taken) = tokio::join!(of(false), of(true));
    [outlasted, taken]
}

impl Contest {
    /// Returns the text for a cell of the table.
    pub(crate) fn describe(&self) -> String {
        let learned = match self.told {
            Told::Stopped => format!("stopped after {:.1} s", self.worked_s),
            Told::Afterwards => "notified after its work had ended".to_owned(),
            Told::Nothing if self.overlap_s > 0.0 => "not notified".to_owned(),
            Told::Nothing => "renewed".to_owned(),
        };
        if self.overlap_s > 0.0 {
            format!("{learned}; {:.1} s with another", self.overlap_s)
        } else {
            format!("{learned}; alone")
        }
    }
}
