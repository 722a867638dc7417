//! Many holds of one process. The process renews its holds with shared requests, but the loss of one hold does not
//! affect the others.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lock_runtime::{Layout, LockClient, LockGuard, LossReason};
use redis::aio::MultiplexedConnection;
use support::server::{RedisServer, ask};
use tokio::time::sleep;

use crate::fixture::until;

const LEASE: Duration = Duration::from_secs(4);
const MANY: usize = 150;

struct Fixture {
    server: RedisServer,
    client: LockClient,
    redis: MultiplexedConnection,
    layout: Layout,
}

impl Fixture {
    async fn in_layout(layout: Layout) -> Self {
        let server = RedisServer::start().await;
        let builder = LockClient::builder().url(server.url()).layout(layout);
        Self {
            client: builder.connect_within(support::PATIENCE).await.unwrap(),
            redis: server.connection().await,
            server,
            layout,
        }
    }

    /// Acquires the locks of all these keys, with renewed leases.
    async fn hold(&self, keys: &[String]) -> Vec<LockGuard> {
        let taken = keys.iter().map(async |key| {
            let lock = self.client.lock(key.as_str()).lease(LEASE).renew(true);
            lock.acquire().await.unwrap()
        });
        join_all(taken).await
    }

    /// Returns the key under which the server stores a lock.
    fn name(&self, key: &str) -> String {
        match self.layout {
            Layout::Redisson => key.to_owned(),
            Layout::Native => format!("{{lock:{key}}}"),
        }
    }

    /// Runs a command on the key under which the server stores this lock.
    async fn tell(&mut self, command: &str, key: &str, args: &[&str]) {
        let name = self.name(key);
        ask::<()>(&mut self.redis, redis::cmd(command).arg(name).arg(args)).await;
    }

    /// Waits until the client has counted `renewals` further renewals. A lease that is renewed twice counts twice.
    async fn until_renewed(&self, renewals: usize) {
        let before = self.client.stats().renewed;
        until(async || self.client.stats().renewed - before >= renewals as u64).await;
    }
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key:{number}")).collect()
}

fn losses(guards: &[LockGuard]) -> Vec<Option<LossReason>> {
    guards.iter().map(|guard| guard.loss()).collect()
}

#[tokio::test]
async fn many_holds_are_renewed_by_few_commands() {
    for layout in [Layout::Native, Layout::Redisson] {
        let fixture = Fixture::in_layout(layout).await;
        let guards = fixture.hold(&keys(MANY)).await;
        // From here on, the client sends only renewals.
        let (scripts, renewed) = (
            fixture.server.scripts().await,
            fixture.client.stats().renewed,
        );
        fixture.until_renewed(4 * MANY).await;
        let renewed = fixture.client.stats().renewed - renewed;
        let scripts = fixture.server.scripts().await - scripts;
        assert!(
            scripts * 10 < renewed,
            "{scripts} scripts for {renewed} renewals"
        );
        assert_eq!(losses(&guards), [None; MANY]);
    }
}

#[tokio::test]
async fn of_many_holds_those_that_are_gone_are_lost_and_no_others() {
    for layout in [Layout::Native, Layout::Redisson] {
        let mut fixture = Fixture::in_layout(layout).await;
        let guards = fixture.hold(&keys(MANY)).await;
        fixture.tell("DEL", "key:7", &[]).await;
        fixture.tell("DEL", "key:8", &[]).await;
        // Stores a value under the second deleted key. The value has a type that the layout does not use for grants.
        match layout {
            Layout::Native => fixture.tell("HSET", "key:8", &["field", "1"]).await,
            Layout::Redisson => fixture.tell("SET", "key:8", &["1"]).await,
        }
        fixture.until_renewed(6 * MANY).await;
        for (number, loss) in losses(&guards).into_iter().enumerate() {
            let gone = [7, 8].contains(&number);
            assert_eq!(
                loss,
                gone.then_some(LossReason::NotHeld),
                "{number}, {layout:?}"
            );
        }
    }
}

/// An access rule excludes the key of one hold, so the server refuses each renewal command that contains this key. Only
/// this hold is lost.
#[tokio::test]
async fn of_many_holds_those_that_the_server_refuses_are_lost_and_no_others() {
    let mut fixture = Fixture::in_layout(Layout::Native).await;
    let mut named = keys(MANY);
    named[7] = "secret".into();
    let guards = fixture.hold(&named).await;
    let told = ["SETUSER", "default", "resetkeys", "~*key:*"];
    ask::<()>(&mut fixture.redis, redis::cmd("ACL").arg(&told)).await;
    // A refusal alone is not a loss: the engine retries the renewal until the lease is over.
    guards[7].lost().await;
    fixture.until_renewed(4 * MANY).await;
    for (number, loss) in losses(&guards).into_iter().enumerate() {
        assert_eq!(
            loss,
            (number == 7).then_some(LossReason::Expired),
            "{number}"
        );
    }
    assert!(fixture.client.stats().renewal_failed > 0);
}

#[tokio::test]
async fn many_holds_outlive_a_server_that_pauses() {
    let fixture = Fixture::in_layout(Layout::Native).await;
    let guards = fixture.hold(&keys(MANY)).await;
    fixture.until_renewed(MANY).await;
    for _ in 0..2 {
        fixture.server.stop_process();
        sleep(LEASE / 4).await;
        fixture.server.continue_process();
        fixture.until_renewed(2 * MANY).await;
    }
    assert_eq!(losses(&guards), [None; MANY]);
}

#[tokio::test]
async fn many_holds_outlive_the_scripts_of_the_server() {
    let mut fixture = Fixture::in_layout(Layout::Native).await;
    let guards = fixture.hold(&keys(MANY)).await;
    let mut flush = redis::cmd("SCRIPT");
    let flushed = flush.arg("FLUSH").exec_async(&mut fixture.redis).await;
    flushed.unwrap();
    fixture.until_renewed(4 * MANY).await;
    assert_eq!(losses(&guards), [None; MANY]);
    assert_eq!(fixture.client.stats().renewal_failed, 0);
}

/// The answer to a renewal says how much of the lease was left when the server carried out the renewal. It is possible
/// that the server carried out the renewal right after the client sent it, so the client counts the deadline from the
/// moment of sending.
#[tokio::test]
async fn a_late_answer_counts_from_the_sending() {
    let fixture = Fixture::in_layout(Layout::Native).await;
    let lease = 2 * LEASE;
    let lock = fixture.client.lock("k").lease(lease).renew(true);
    let guard = lock.acquire().await.unwrap();
    // Renewals have a connection of their own. It is ready once the lease has been renewed.
    fixture.until_renewed(1).await;
    let before = fixture.client.stats();
    fixture.server.stop_process();
    until(async || fixture.client.stats().commands > before.commands).await;
    // The answer is delayed by less than a third of the lease, so the next renewal is not due yet when the answer
    // arrives.
    sleep(lease / 5).await;
    fixture.server.continue_process();
    until(async || fixture.client.stats().renewed > before.renewed).await;
    let left = guard.remaining();
    assert!(left <= lease - lease / 5, "{left:?}");
}

/// One of two holds reaches its deadline while a single renewal request for both holds is under way. Only this hold is
/// lost.
#[tokio::test]
async fn a_hold_is_lost_at_its_own_deadline() {
    let fixture = Fixture::in_layout(Layout::Native).await;
    let of = async |key: &str, lease: Duration| {
        let lock = fixture.client.lock(key).lease(lease).renew(true);
        lock.acquire().await.unwrap()
    };
    // The second renewal of `short` is due together with the first renewal of `long`.
    let (long, short) = (of("long", 2 * LEASE).await, of("short", LEASE).await);
    fixture.until_renewed(1).await;
    fixture.server.stop_process();
    let (begun, left) = (Instant::now(), short.remaining());
    // Nothing polls the guard, so the engine itself has to notice the loss.
    until(async || fixture.client.stats().lost > 0).await;
    assert!(begun.elapsed() >= left, "lost {left:?} before the deadline");
    assert_eq!(short.loss(), Some(LossReason::Expired));
    // On a busy machine, the longer lease can end as well.
    let long_lost = long.loss();
    assert!(
        long_lost.is_none() || begun.elapsed() > LEASE,
        "{long_lost:?}"
    );
    fixture.server.continue_process();
}

#[tokio::test]
async fn of_many_holds_the_released_leave_the_others_in_the_schedule() {
    let fixture = Fixture::in_layout(Layout::Native).await;
    let mut guards = fixture.hold(&keys(MANY)).await;
    for _ in 0..3 {
        // When a hold is removed from the schedule, the last hold with the same due time moves to the index of the
        // removed hold. The test therefore releases holds from both ends of the list.
        let mut others = VecDeque::from(guards);
        let mut released = Vec::new();
        for _ in 0..others.len() / 6 {
            released.extend(others.pop_front());
            released.extend(others.pop_back());
        }
        guards = others.into();
        join_all(released.into_iter().map(LockGuard::release)).await;
        fixture.until_renewed(guards.len()).await;
    }
    fixture.until_renewed(4 * guards.len()).await;
    assert_eq!(losses(&guards), vec![None; guards.len()]);
    assert_eq!(fixture.client.stats().lost, 0);
}
