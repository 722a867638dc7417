//! Row 44 of `docs/faults.md`: a member that blocks the runtime of its cohort.

use std::{thread, time::Duration};

use tokio::runtime::Builder;

use super::{BEHIND, Fixture, MEMBERS};
use crate::{
    fixture::{MS, SECOND, client, grant, left, row, until},
    waiters::{Entered, Stored, holder, until_cohort},
};

/// A runtime with a single thread, for callers whose bodies block that thread.
struct OneThread {
    handle: tokio::runtime::Handle,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl OneThread {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        thread::spawn(move || runtime.block_on(stopped));
        Self {
            handle,
            _stop: stop,
        }
    }

    /// Blocks the thread for `time`.
    async fn block(&self, time: Duration) {
        let blocked = self.handle.spawn(async move { thread::sleep(time) });
        blocked.await.unwrap();
    }
}

/// Returns a cohort whose callers run on one thread, and whose second member holds the lock.
async fn second_inside(thread: &OneThread, renew: bool) -> (Fixture, Stored, Entered) {
    let mut fixture = Fixture::start().await;
    let url = fixture.server.url();
    let client = thread.handle.spawn(async move { client(&url).await });
    let client = client.await.unwrap();
    let guard = holder(&fixture.direct).await;
    for _ in 0..MEMBERS {
        let lock = client
            .lock("k")
            .wait(60 * SECOND)
            .lease(SECOND)
            .renew(renew);
        fixture.waiters.queue_on(&thread.handle, lock).await;
    }
    fixture.queue_behind().await;
    guard.release().await;
    let cohort = until_cohort(&fixture.server, MEMBERS).await;
    fixture.waiters.pass([0]).await;
    let second = fixture.waiters.next().await;
    assert_eq!((second.caller, second.token()), (1, cohort.token + 1));
    (fixture, cohort, second)
}

/// Row 44 of `docs/faults.md`: a member blocks the runtime of its cohort for longer than the lease, and for longer than
/// a claim (2 s). The engine's own thread renews the lease nevertheless. The other members of the cohort have their
/// turns after the blocking member has left.
#[tokio::test]
async fn row_44_runtime_blocked_in_a_cohort_that_is_renewed() {
    row(44, async |_| {
        let thread = OneThread::start();
        let (mut fixture, cohort, second) = second_inside(&thread, true).await;
        thread.block(3 * SECOND).await;
        assert_eq!(second.guard.loss(), None);
        let stored = Stored::read(&grant(&fixture.server).await.unwrap());
        assert_eq!(stored, cohort);
        second.leave().await;
        for (caller, token) in (2..MEMBERS).zip(cohort.token + 2..) {
            let entered = fixture.waiters.next().await;
            assert_eq!((entered.caller, entered.token()), (caller, token));
            entered.leave().await;
        }
        fixture.waiters.pass([BEHIND]).await;
        fixture.end().await;
    })
    .await;
}

/// Row 44 of `docs/faults.md`: a member of a cohort has a fixed lease, and blocks its runtime until that lease has
/// ended. The caller behind the cohort enters next. The other members of the cohort then queue again, ahead of callers
/// that queue later.
#[tokio::test]
async fn row_44_runtime_blocked_in_a_cohort_that_is_not_renewed() {
    row(44, async |seen| {
        let thread = OneThread::start();
        let (mut fixture, cohort, mut second) = second_inside(&thread, false).await;
        let since = second.at;
        second.loses();
        thread.block(1500 * MS).await;
        assert!(
            second.guard.loss().is_some(),
            "the second member's lease has ended"
        );
        // The members left the queue when the cohort was granted the lock. When this grant ends, the caller behind the
        // cohort is first in the queue, and enters before the remaining members.
        let next = fixture.waiters.next().await;
        assert_eq!(next.caller, BEHIND);
        let took = next.at.saturating_duration_since(since);
        seen.within(
            "the next process enters after the grant",
            SECOND + 200 * MS,
            took,
        );
        assert!(next.token() > cohort.token + 1);
        second.leave().await;
        fixture.waiters.until_queued(MEMBERS - 2).await;
        fixture.queue_behind().await;
        next.leave().await;
        fixture.waiters.pass((2..MEMBERS).chain([BEHIND + 1])).await;
        until(async || left(&fixture.server).await.is_empty()).await;
        fixture.waiters.assert_exclusive();
    })
    .await;
}
