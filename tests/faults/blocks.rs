//! Rows 39, 41, 43, 44, 46, 47: what happens to a block in the middle of it, and to its members, while its process lives.

use std::{
    thread,
    time::{Duration, Instant},
};

use lock_runtime::{LockClient, LockError};
use support::{proxy::FaultProxy, server::RedisServer};
use tokio::runtime::Builder;

use crate::{
    crowd::{Crowd, Entered, Stored, holder, time_to_live, until_block},
    scene::{MS, NAME, QUEUE, SECOND, client, grant, left, row, until},
};

/// How many callers of one client queue, and have the lock as a block then. One of another client queues behind them.
const MEMBERS: usize = 5;
const BEHIND: usize = MEMBERS;

/// A key that is held, with callers of one client in its queue and of another one behind them.
struct Scene {
    server: RedisServer,
    proxy: FaultProxy,
    /// Through the proxy.
    behind: LockClient,
    direct: LockClient,
    crowd: Crowd,
}

impl Scene {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        Self {
            behind: client(&proxy.url()).await,
            direct: client(&server.url()).await,
            crowd: Crowd::at(&server).await,
            server,
            proxy,
        }
    }

    /// All have queued.
    async fn queued(&mut self, lease: Duration) {
        let lock = self.behind.lock("k").wait(60 * SECOND).lease(lease);
        self.crowd.queue_many(MEMBERS, &lock).await;
        self.queue_behind().await;
    }

    async fn queue_behind(&mut self) {
        let lock = self.direct.lock("k").wait(60 * SECOND);
        self.crowd.queue(lock).await;
    }

    /// They are a block, the first one is inside, and the last one still queues.
    async fn inside(&mut self, lease: Duration) -> (Stored, Entered) {
        let guard = holder(&self.direct).await;
        self.queued(lease).await;
        guard.release().await;
        let block = until_block(&self.server, MEMBERS).await;
        let first = self.crowd.next().await;
        assert_eq!((first.caller, first.token()), (0, block.token));
        (block, first)
    }

    /// Nothing is left, and nothing was wrong.
    async fn end(self) {
        until(async || left(&self.server).await.is_empty()).await;
        self.crowd.assert_clean();
    }
}

/// When a member of a block is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// It queues.
    Before,
    /// The server has given it the lock, and its process does not know yet.
    AtThePush,
    /// It waits for its turn in the process; the first one is inside.
    After,
    /// Its turn has come, and it has not been polled since.
    AtItsTurn,
}

/// These are cancelled, the others come in.
async fn cancelled(callers: &[usize], when: When) -> Duration {
    let mut scene = Scene::start().await;
    let guard = holder(&scene.direct).await;
    scene.queued(30 * SECOND).await;
    let mut others: Vec<usize> = (0..MEMBERS).filter(|one| !callers.contains(one)).collect();
    if when == When::Before {
        for caller in callers {
            scene.crowd.cancel(*caller).await;
        }
        scene.crowd.until_queued(others.len() + 1).await;
    }
    scene.proxy.hold_replies(when == When::AtThePush);
    guard.release().await;
    let members = match when {
        When::Before => others.len(),
        _ => MEMBERS,
    };
    if members > 0 {
        until_block(&scene.server, members).await;
    }
    if when == When::AtThePush {
        for caller in callers {
            scene.crowd.cancel(*caller).await;
        }
        assert!(scene.crowd.is_quiet(), "the push was held back");
        scene.proxy.hold_replies(false);
    }
    if when == When::After {
        let first = scene.crowd.next().await;
        assert_eq!(first.caller, 0);
        for caller in callers.iter().filter(|caller| **caller > 0) {
            scene.crowd.cancel(*caller).await;
        }
        if callers.contains(&0) {
            first.vanish();
        } else {
            first.leave().await;
        }
        others.retain(|other| *other > 0);
    }
    if let (When::AtItsTurn, [caller]) = (when, callers) {
        scene.crowd.pass(0..caller - 1).await;
        let before = scene.crowd.next().await;
        assert_eq!(before.caller, caller - 1);
        before.leave().await;
        assert!(
            scene.crowd.is_quiet(),
            "its turn has come, and it was not polled"
        );
        scene.crowd.cancel(*caller).await;
        others.retain(|other| other > caller);
    }
    let mut freed = Instant::now();
    for caller in others {
        let entered = scene.crowd.next().await;
        assert_eq!(
            entered.caller, caller,
            "{callers:?} were cancelled {when:?}"
        );
        entered.leave().await;
        freed = Instant::now();
    }
    let next = scene.crowd.next().await;
    assert_eq!(next.caller, BEHIND, "{callers:?} were cancelled {when:?}");
    let took = next.at.saturating_duration_since(freed);
    next.leave().await;
    scene.end().await;
    took
}

/// Row 39: members of a block are cancelled: the others have their turns, in order, and the one behind them after them.
#[tokio::test]
async fn row_39_members_cancelled() {
    row(39, async |seen| {
        let (first, middle, last) = (0, MEMBERS / 2, MEMBERS - 1);
        let all: Vec<usize> = (0..MEMBERS).collect();
        for when in [When::Before, When::AtThePush, When::After] {
            for callers in [&[first][..], &[middle], &[last], &all] {
                let took = cancelled(callers, when).await;
                seen.within(
                    "the next process enters after the block",
                    Duration::ZERO,
                    took,
                );
            }
        }
        // Of the first one the push is the turn: row 8 and the promises drop it there.
        for caller in [1, middle, last] {
            let took = cancelled(&[caller], When::AtItsTurn).await;
            seen.within(
                "the next process enters after the block",
                Duration::ZERO,
                took,
            );
        }
    })
    .await;
}

/// Row 41: the connection breaks while a member of a block is inside: it goes on, and so do the others.
async fn cut_in_the_middle(cut: impl AsyncFn(&Scene)) -> Duration {
    let mut scene = Scene::start().await;
    let (block, first) = scene.inside(30 * SECOND).await;
    first.leave().await;
    let second = scene.crowd.next().await;
    let connections = scene.proxy.connections();
    cut(&scene).await;
    let proxy = &scene.proxy;
    until(async || proxy.connections() > connections).await;
    // The members ask for their places again: they have theirs in the grant.
    let status = async || scene.behind.lock("k").status().await.unwrap();
    assert_eq!(status().await.waiters, MEMBERS - 2 + 1);
    let extended = second.guard.extend(40 * SECOND).await.unwrap();
    assert!(extended > 35 * SECOND, "{extended:?}");
    assert_eq!(second.guard.loss(), None);
    assert_eq!(until_block(&scene.server, MEMBERS).await.token, block.token);
    assert_eq!(scene.crowd.queued().await, 1, "a member queues twice");
    assert_eq!((second.caller, second.token()), (1, block.token + 1));
    second.leave().await;
    // Once more, and this time a member leaves before the connection is back.
    let third = scene.crowd.next().await;
    cut(&scene).await;
    third.leave().await;
    scene.crowd.pass(3..MEMBERS).await;
    let released = Instant::now();
    let next = scene.crowd.next().await;
    let took = next.at.saturating_duration_since(released);
    assert_eq!(next.caller, BEHIND);
    next.leave().await;
    assert_eq!(scene.behind.stats().lost, 0);
    scene.end().await;
    took
}

#[tokio::test]
async fn row_41_connection_cut_in_the_middle_of_a_block() {
    row(41, async |seen| {
        let took = cut_in_the_middle(async |scene| scene.proxy.cut()).await;
        seen.within("the next process enters after the block", 200 * MS, took);
    })
    .await;
}

#[tokio::test]
async fn row_41_connection_killed_in_the_middle_of_a_block() {
    row(41, async |seen| {
        let took = cut_in_the_middle(async |scene| {
            let mut redis = scene.server.connection().await;
            let mut list = redis::cmd("CLIENT");
            let clients: String = list.arg("LIST").query_async(&mut redis).await.unwrap();
            // The test's own connections listen to nobody.
            for client in clients.lines().filter(|line| !line.contains(" sub=0 ")) {
                let id = client
                    .split(' ')
                    .find_map(|field| field.strip_prefix("id="));
                let mut kill = redis::cmd("CLIENT");
                kill.arg("KILL").arg("ID").arg(id.unwrap());
                kill.exec_async(&mut redis).await.unwrap();
            }
        })
        .await;
        seen.within("the next process enters after the block", 200 * MS, took);
    })
    .await;
}

/// Row 43: the server has made a block, and its push is lost while the connection lives: a look finds it.
#[tokio::test]
async fn row_43_push_of_a_block_lost() {
    const GIVE_WITHOUT_A_WORD: &str = "
        local heads = redis.call('ZPOPMIN', KEYS[2], ARGV[1])
        local owners, inbox, lease = {}
        for i = 1, #heads, 2 do
            owners[#owners + 1], inbox, lease = string.match(heads[i], '^(%x+)|([^|]+)|(%d+)')
        end
        local token = redis.call('INCRBY', KEYS[3], #owners) - #owners + 1
        local grant = string.format('%.0f|', token) .. lease .. '|' .. inbox .. '|' .. table.concat(owners, ' ')
        redis.call('SET', KEYS[1], grant, 'PX', 2000)
        return string.format('%.0f', token)";
    row(43, async |seen| {
        let mut scene = Scene::start().await;
        let guard = holder(&scene.direct).await;
        scene.queued(30 * SECOND).await;
        let mut redis = scene.server.connection().await;
        let given = Instant::now();
        let token: u64 = redis::Script::new(GIVE_WITHOUT_A_WORD)
            .key(NAME)
            .key(QUEUE)
            .key("lock:fence")
            .arg(MEMBERS)
            .invoke_async(&mut redis)
            .await
            .unwrap();
        let first = scene.crowd.next().await;
        assert_eq!((first.caller, first.token()), (0, token));
        let took = first.at.saturating_duration_since(given);
        seen.within("entered after a lost push", 200 * MS, took);
        first.leave().await;
        for (caller, token) in (1..MEMBERS).zip(token + 1..) {
            let entered = scene.crowd.next().await;
            assert_eq!((entered.caller, entered.token()), (caller, token));
            entered.leave().await;
        }
        // Its grant was taken away: it gives nothing of the others' back.
        guard.release().await;
        scene.crowd.pass([BEHIND]).await;
        scene.end().await;
    })
    .await;
}

/// A runtime of one thread, for callers whose bodies block it.
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

    /// A body blocks its thread for so long.
    async fn block(&self, time: Duration) {
        let blocked = self.handle.spawn(async move { thread::sleep(time) });
        blocked.await.unwrap();
    }
}

/// A block of callers that live on one thread, the second one of which is inside.
async fn second_inside(thread: &OneThread, renew: bool) -> (Scene, Stored, Entered) {
    let mut scene = Scene::start().await;
    let url = scene.server.url();
    let client = thread.handle.spawn(async move { client(&url).await });
    let client = client.await.unwrap();
    let guard = holder(&scene.direct).await;
    for _ in 0..MEMBERS {
        let lock = client
            .lock("k")
            .wait(60 * SECOND)
            .lease(SECOND)
            .renew(renew);
        scene.crowd.queue_on(&thread.handle, lock).await;
    }
    scene.queue_behind().await;
    guard.release().await;
    let block = until_block(&scene.server, MEMBERS).await;
    scene.crowd.pass([0]).await;
    let second = scene.crowd.next().await;
    assert_eq!((second.caller, second.token()), (1, block.token + 1));
    (scene, block, second)
}

/// Row 44: a member blocks its runtime for longer than the lease and the claim, and its lease is renewed: the others
/// have their turns after it.
#[tokio::test]
async fn row_44_runtime_blocked_in_a_block_that_is_renewed() {
    row(44, async |_| {
        let thread = OneThread::start();
        let (mut scene, block, second) = second_inside(&thread, true).await;
        thread.block(3 * SECOND).await;
        assert_eq!(second.guard.loss(), None);
        let stored = Stored::read(&grant(&scene.server).await.unwrap());
        assert_eq!(stored, block);
        second.leave().await;
        for (caller, token) in (2..MEMBERS).zip(block.token + 2..) {
            let entered = scene.crowd.next().await;
            assert_eq!((entered.caller, entered.token()), (caller, token));
            entered.leave().await;
        }
        scene.crowd.pass([BEHIND]).await;
        scene.end().await;
    })
    .await;
}

/// Row 44: the same with a fixed lease, which ends: the others take their places again, before those who came later.
#[tokio::test]
async fn row_44_runtime_blocked_in_a_block_that_is_not_renewed() {
    row(44, async |seen| {
        let thread = OneThread::start();
        let (mut scene, block, mut second) = second_inside(&thread, false).await;
        let since = second.at;
        second.loses();
        thread.block(1500 * MS).await;
        assert!(second.guard.loss().is_some(), "the lease has ended");
        // Whoever is next when it ends comes in: those of the block stood in the grant, not in the queue.
        let next = scene.crowd.next().await;
        assert_eq!(next.caller, BEHIND);
        let took = next.at.saturating_duration_since(since);
        seen.within(
            "the next process enters after the grant",
            SECOND + 200 * MS,
            took,
        );
        assert!(next.token() > block.token + 1);
        second.leave().await;
        scene.crowd.until_queued(MEMBERS - 2).await;
        scene.queue_behind().await;
        next.leave().await;
        scene.crowd.pass((2..MEMBERS).chain([BEHIND + 1])).await;
        until(async || left(&scene.server).await.is_empty()).await;
        scene.crowd.assert_exclusive();
    })
    .await;
}

/// Row 46: a member in the middle of a block wants the lock kept after it.
#[tokio::test]
async fn row_46_member_that_keeps_the_lock() {
    const AT_LEAST: Duration = SECOND;
    row(46, async |seen| {
        let mut scene = Scene::start().await;
        let guard = holder(&scene.direct).await;
        let lock = scene.behind.lock("k").wait(60 * SECOND).lease(5 * SECOND);
        scene.crowd.queue(lock.clone()).await;
        let keeps = lock.clone().hold_at_least(AT_LEAST);
        scene.crowd.queue(keeps).await;
        scene.crowd.queue(lock).await;
        scene.queue_behind().await;
        guard.release().await;
        let block = until_block(&scene.server, 3).await;
        scene.crowd.pass([0]).await;
        let keeper = scene.crowd.next().await;
        let since = keeper.at;
        keeper.leave().await;
        let returned = since.elapsed();
        assert!(returned < AT_LEAST / 2, "left after {returned:?}");
        // Kept on the server as well, should the process end.
        let mut redis = scene.server.connection().await;
        let left = time_to_live(&mut redis).await.expect("the lock is kept");
        assert!(left + since.elapsed() >= AT_LEAST, "{left:?}");
        assert!(scene.direct.lock("k").try_acquire().await.is_err());
        let next = scene.crowd.next().await;
        assert_eq!((next.caller, next.token()), (2, block.token + 2));
        let kept = next.at.saturating_duration_since(since);
        assert!(kept >= AT_LEAST - 20 * MS, "{kept:?}");
        seen.within("the next member enters after the grant", AT_LEAST, kept);
        next.leave().await;
        scene.crowd.pass([3]).await;
        scene.end().await;
    })
    .await;
}

/// Row 47: neighbours of one client with leases and waits of their own: a block has one lease, and nobody in it whose time
/// is up.
#[tokio::test]
async fn row_47_mixed_leases_and_waits() {
    row(47, async |_| {
        let mut scene = Scene::start().await;
        let guard = holder(&scene.direct).await;
        let lock = |lease: u32, wait: u32| {
            let lock = scene.behind.lock("k").lease(lease * SECOND);
            lock.wait(wait * MS)
        };
        let short_wait = 1500;
        let asked = [
            lock(30, 60_000),
            lock(30, 50_000),
            lock(20, 60_000),
            lock(20, short_wait),
            lock(20, 40_000),
            lock(30, 60_000),
        ];
        let blocks = [(30_000, 0..2), (20_000, 2..5), (30_000, 5..6)];
        for lock in asked {
            scene.crowd.queue(lock).await;
        }
        plant_the_dead(&scene.server).await;
        let mut last = until_block(&scene.server, 1).await;
        guard.release().await;
        for (lease_ms, callers) in blocks {
            until(async || {
                let stored = grant(&scene.server).await.map(|text| Stored::read(&text));
                let newer = stored.filter(|stored| stored.token > last.token);
                newer.map(|newer| last = newer).is_some()
            })
            .await;
            assert_eq!(
                (last.lease_ms, last.owners.len()),
                (lease_ms, callers.len())
            );
            for (caller, token) in callers.zip(last.token..) {
                if caller == 3 {
                    continue; // its time was up
                }
                let entered = scene.crowd.next().await;
                assert_eq!((entered.caller, entered.token()), (caller, token));
                if caller == 2 {
                    // Until the wait of the next one is over.
                    let (gone, error) = scene.crowd.refused().await;
                    assert!(matches!(error, LockError::Busy { .. }), "{error}");
                    assert_eq!(gone, 3);
                }
                entered.leave().await;
            }
        }
        assert_eq!(scene.crowd.queued().await, 0);
        scene.end().await;
    })
    .await;
}

/// Between the first two in the queue stands one like them, whose time is up.
async fn plant_the_dead(server: &RedisServer) {
    const PLANT: &str = "
        local heads = redis.call('ZRANGE', KEYS[1], 0, 1, 'WITHSCORES')
        local tail = string.match(heads[1], '^%x+(|[^|]+|%d+)|')
        local between = string.format('%.1f', (heads[2] + heads[4]) / 2)
        return redis.call('ZADD', KEYS[1], between, string.rep('0', 32) .. tail .. '|1')";
    let mut redis = server.connection().await;
    let script = redis::Script::new(PLANT);
    let added: u8 = script.key(QUEUE).invoke_async(&mut redis).await.unwrap();
    assert_eq!(added, 1);
}
