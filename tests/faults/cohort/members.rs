//! Rows 39, 41, 43, 46 and 47 of `docs/faults.md`: events during the turns of a cohort whose process keeps running.

use std::time::{Duration, Instant};

use lock_runtime::{FencingToken, LockError};
use support::server::{RedisServer, ask};

use super::{BEHIND, Fixture, MEMBERS};
use crate::{
    fixture::{MS, NAME, QUEUE, SECOND, grant, row, until},
    waiters::{Stored, holder, time_to_live, until_cohort},
};

/// The moment at which a member of a cohort is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// The member of the cohort is cancelled while it is in the queue.
    Before,
    /// The member is cancelled after the server has granted the lock to the cohort, but before the push reaches its
    /// process.
    AtThePush,
    /// The member of the cohort is cancelled while it waits for its turn and the first member holds the lock.
    After,
    /// The member of the cohort is cancelled after its turn has come, but before it is polled.
    AtItsTurn,
}

/// Cancels `callers` at the moment `when`, and lets the other members of the cohort enter. Returns the time between the
/// end of the last turn of the cohort and the entry of the caller behind the cohort.
async fn cancelled(callers: &[usize], when: When) -> Duration {
    let mut fixture = Fixture::start().await;
    let guard = holder(&fixture.direct).await;
    fixture.queued(30 * SECOND).await;
    let mut others: Vec<usize> = (0..MEMBERS).filter(|one| !callers.contains(one)).collect();
    if when == When::Before {
        for caller in callers {
            fixture.waiters.cancel(*caller).await;
        }
        fixture.waiters.until_queued(others.len() + 1).await;
    }
    fixture.proxy.hold_replies(when == When::AtThePush);
    guard.release().await;
    let members = match when {
        When::Before => others.len(),
        _ => MEMBERS,
    };
    if members > 0 {
        until_cohort(&fixture.server, members).await;
    }
    if when == When::AtThePush {
        for caller in callers {
            fixture.waiters.cancel(*caller).await;
        }
        assert!(
            fixture.waiters.is_quiet(),
            "a caller entered before the push"
        );
        fixture.proxy.hold_replies(false);
    }
    if when == When::After {
        let first = fixture.waiters.next().await;
        assert_eq!(first.caller, 0);
        for caller in callers.iter().filter(|caller| **caller > 0) {
            fixture.waiters.cancel(*caller).await;
        }
        if callers.contains(&0) {
            first.vanish();
        } else {
            first.leave().await;
        }
        others.retain(|other| *other > 0);
    }
    if let (When::AtItsTurn, [caller]) = (when, callers) {
        fixture.waiters.pass(0..caller - 1).await;
        let before = fixture.waiters.next().await;
        assert_eq!(before.caller, caller - 1);
        before.leave().await;
        assert!(
            fixture.waiters.is_quiet(),
            "another caller entered during the turn of caller {caller}"
        );
        fixture.waiters.cancel(*caller).await;
        others.retain(|other| other > caller);
    }
    let mut freed = Instant::now();
    for caller in others {
        let entered = fixture.waiters.next().await;
        assert_eq!(
            entered.caller, caller,
            "{callers:?} were cancelled {when:?}"
        );
        entered.leave().await;
        freed = Instant::now();
    }
    let next = fixture.waiters.next().await;
    assert_eq!(next.caller, BEHIND, "{callers:?} were cancelled {when:?}");
    let took = next.at.saturating_duration_since(freed);
    next.leave().await;
    fixture.end().await;
    took
}

/// Row 39 of `docs/faults.md`: members of a cohort are cancelled. The other members have their turns in order, and then
/// the caller behind the cohort enters.
#[tokio::test]
async fn row_39_members_cancelled() {
    row(39, async |seen| {
        let (first, middle, last) = (0, MEMBERS / 2, MEMBERS - 1);
        let all: Vec<usize> = (0..MEMBERS).collect();
        for when in [When::Before, When::AtThePush, When::After] {
            for callers in [&[first][..], &[middle], &[last], &all] {
                let took = cancelled(callers, when).await;
                seen.within(
                    "the next process enters after the cohort",
                    Duration::ZERO,
                    took,
                );
            }
        }
        // The first member of the cohort is not cancelled here, because its turn begins when the push arrives. Other
        // tests (row 8 and `tests/promises`) drop callers at that moment.
        for caller in [1, middle, last] {
            let took = cancelled(&[caller], When::AtItsTurn).await;
            seen.within(
                "the next process enters after the cohort",
                Duration::ZERO,
                took,
            );
        }
    })
    .await;
}

/// Row 41 of `docs/faults.md`: the connection breaks while a member of a cohort holds the lock. The holder keeps the
/// lock, and the other members of the cohort have their turns. Returns the time from the end of the last turn until the
/// caller behind the cohort enters.
async fn cut_in_the_middle(cut: impl AsyncFn(&Fixture)) -> Duration {
    let mut fixture = Fixture::start().await;
    let (cohort, first) = fixture.inside(30 * SECOND).await;
    first.leave().await;
    let second = fixture.waiters.next().await;
    let connections = fixture.proxy.connections();
    cut(&fixture).await;
    let proxy = &fixture.proxy;
    until(async || proxy.connections() > connections).await;
    // Over the new connection, the members repeat their requests, and learn that the cohort still has its grant.
    let status = async || fixture.behind.lock("k").status().await.unwrap();
    assert_eq!(status().await.waiters, MEMBERS - 2 + 1);
    assert_eq!(second.guard.loss(), None);
    assert_eq!(
        until_cohort(&fixture.server, MEMBERS).await.token,
        cohort.token
    );
    assert_eq!(fixture.waiters.queued().await, 1, "a member queues twice");
    assert_eq!((second.caller, second.token()), (1, cohort.token + 1));
    second.leave().await;
    // The connection breaks again, and this time a member of a cohort leaves before the client is connected again.
    let third = fixture.waiters.next().await;
    cut(&fixture).await;
    third.leave().await;
    fixture.waiters.pass(3..MEMBERS).await;
    let released = Instant::now();
    let next = fixture.waiters.next().await;
    let took = next.at.saturating_duration_since(released);
    assert_eq!(next.caller, BEHIND);
    next.leave().await;
    assert_eq!(fixture.behind.stats().lost, 0);
    fixture.end().await;
    took
}

#[tokio::test]
async fn row_41_connection_cut_in_the_middle_of_a_cohort() {
    row(41, async |seen| {
        let took = cut_in_the_middle(async |fixture| fixture.proxy.cut()).await;
        seen.within("the next process enters after the cohort", 200 * MS, took);
    })
    .await;
}

#[tokio::test]
async fn row_41_connection_killed_in_the_middle_of_a_cohort() {
    row(41, async |seen| {
        let took = cut_in_the_middle(async |fixture| {
            let mut redis = fixture.server.connection().await;
            let clients: String = ask(&mut redis, redis::cmd("CLIENT").arg("LIST")).await;
            // Skips the test's own connections, which have no subscriptions.
            for client in clients.lines().filter(|line| !line.contains(" sub=0 ")) {
                let id = client
                    .split(' ')
                    .find_map(|field| field.strip_prefix("id="));
                ask::<()>(
                    &mut redis,
                    redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id.unwrap()),
                )
                .await;
            }
        })
        .await;
        seen.within("the next process enters after the cohort", 200 * MS, took);
    })
    .await;
}

/// The connection breaks, and then a member asks for a longer lease than the others. It keeps the grant alone, and the others
/// queue again at their places, before the caller behind them.
#[tokio::test]
async fn row_41_a_longer_lease_after_a_cut() {
    row(41, async |_| {
        let mut fixture = Fixture::start().await;
        let (cohort, first) = fixture.inside(30 * SECOND).await;
        first.leave().await;
        let second = fixture.waiters.next().await;
        fixture.proxy.cut();
        let extended = second.guard.extend(40 * SECOND).await.unwrap();
        assert!(extended > 35 * SECOND, "{extended:?}");
        assert_eq!(second.token(), cohort.token + 1);
        let alone = until_cohort(&fixture.server, 2).await;
        assert_eq!(alone.token, cohort.token);
        assert_eq!(fixture.waiters.queued().await, MEMBERS - 2 + 1);
        second.leave().await;
        let third = fixture.waiters.next().await;
        assert_eq!(third.caller, 2);
        assert!(
            third.token() >= cohort.token + MEMBERS as u64,
            "{}",
            third.token()
        );
        third.leave().await;
        fixture.waiters.pass(3..=BEHIND).await;
        fixture.end().await;
    })
    .await;
}

/// Row 43 of `docs/faults.md`: the server grants the lock to a cohort, and the push that reports the grant is lost
/// although the connection stays up. A probe finds the grant, and the first member of the cohort enters.
#[tokio::test]
async fn row_43_push_of_a_cohort_lost() {
    const GIVE_WITHOUT_A_WORD: &str = "
        local heads = redis.call('ZPOPMIN', KEYS[2], ARGV[1])
        local owners, session_id, lease = {}
        for i = 1, #heads, 2 do
            owners[#owners + 1], session_id, lease = string.match(heads[i], '^(%x+)|([^|]+)|(%d+)')
        end
        local token = redis.call('INCRBY', KEYS[3], #owners) - #owners + 1
        local grant = string.format('%.0f|', token) .. lease .. '|' .. session_id .. '|' .. table.concat(owners, ' ')
        redis.call('SET', KEYS[1], grant, 'PX', 2000)
        return string.format('%.0f', token)";
    row(43, async |seen| {
        let mut fixture = Fixture::start().await;
        let guard = holder(&fixture.direct).await;
        fixture.queued(30 * SECOND).await;
        let mut redis = fixture.server.connection().await;
        let given = Instant::now();
        let token: u64 = redis::Script::new(GIVE_WITHOUT_A_WORD)
            .key(NAME)
            .key(QUEUE)
            .key("lock:fence")
            .arg(MEMBERS)
            .invoke_async(&mut redis)
            .await
            .unwrap();
        let first = fixture.waiters.next().await;
        assert_eq!((first.caller, first.token()), (0, token));
        let took = first.at.saturating_duration_since(given);
        seen.within("the waiter enters after a lost message", 200 * MS, took);
        first.leave().await;
        for (caller, token) in (1..MEMBERS).zip(token + 1..) {
            let entered = fixture.waiters.next().await;
            assert_eq!((entered.caller, entered.token()), (caller, token));
            entered.leave().await;
        }
        // The test's script has overwritten the grant of `guard`, so the release of `guard` must not affect the members
        // of the cohort.
        guard.release().await;
        fixture.waiters.pass([BEHIND]).await;
        fixture.end().await;
    })
    .await;
}

/// Row 46 of `docs/faults.md`: a member in the middle of a cohort leaves before its `hold_at_least` is over. The next
/// member of the cohort enters when this minimum hold is over.
#[tokio::test]
async fn row_46_member_that_keeps_the_lock() {
    const AT_LEAST: Duration = SECOND;
    row(46, async |seen| {
        let mut fixture = Fixture::start().await;
        let guard = holder(&fixture.direct).await;
        let lock = fixture.behind.lock("k").wait(60 * SECOND).lease(5 * SECOND);
        fixture.waiters.queue(lock.clone()).await;
        let keeps = lock.clone().hold_at_least(AT_LEAST);
        fixture.waiters.queue(keeps).await;
        fixture.waiters.queue(lock).await;
        fixture.queue_behind().await;
        guard.release().await;
        let cohort = until_cohort(&fixture.server, 3).await;
        // The member enters after this moment.
        let since = Instant::now();
        fixture.waiters.pass([0]).await;
        let keeper = fixture.waiters.next().await;
        let entered = keeper.at;
        keeper.leave().await;
        let returned = entered.elapsed();
        assert!(
            returned < AT_LEAST / 2,
            "the member left after {returned:?}"
        );
        // The server also keeps the lock taken, so the lock would stay taken even if the process ended.
        let mut redis = fixture.server.connection().await;
        let left = time_to_live(&mut redis).await.expect("the lock is kept");
        // The server counts whole milliseconds.
        assert!(left + MS + since.elapsed() >= AT_LEAST, "{left:?}");
        assert!(fixture.direct.lock("k").try_acquire().await.is_err());
        let next = fixture.waiters.next().await;
        // The lock was kept by one member alone, so the next member has a grant of its own.
        assert_eq!(next.caller, 2);
        assert!(next.token() > cohort.token + 2, "{}", next.token());
        let kept = next.at.saturating_duration_since(since);
        assert!(kept >= AT_LEAST, "{kept:?}");
        seen.within("the next member enters after the grant", AT_LEAST, kept);
        next.leave().await;
        fixture.waiters.pass([3]).await;
        fixture.end().await;
    })
    .await;
}

/// Row 47 of `docs/faults.md`: callers of one client are neighbours in the queue, but have different leases and waits.
/// Only callers with the same lease become members of one cohort. A caller whose `wait` is over before the grant does
/// not become a member of the cohort. A member whose `wait` ends before its turn is skipped.
#[tokio::test]
async fn row_47_mixed_leases_and_waits() {
    row(47, async |_| {
        let mut fixture = Fixture::start().await;
        let guard = holder(&fixture.direct).await;
        let lock = |lease: u32, wait: u32| {
            let lock = fixture.behind.lock("k").lease(lease * SECOND);
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
        let cohorts = [(30_000, 0..2), (20_000, 2..5), (30_000, 5..6)];
        for lock in asked {
            fixture.waiters.queue(lock).await;
        }
        plant_the_dead(&fixture.server).await;
        let mut last = until_cohort(&fixture.server, 1).await;
        guard.release().await;
        for (lease_ms, callers) in cohorts {
            until(async || {
                let stored = grant(&fixture.server).await.map(|text| Stored::read(&text));
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
                    // The `wait` of caller 3 ends before its turn, so caller 3 never enters.
                    continue;
                }
                let entered = fixture.waiters.next().await;
                assert_eq!((entered.caller, entered.token()), (caller, token));
                if caller == 2 {
                    // Member 2 keeps the lock until the `wait` of member 3 is over.
                    let (gone, error) = fixture.waiters.refused().await;
                    assert!(matches!(error, LockError::Busy { .. }), "{error}");
                    assert_eq!(gone, 3);
                }
                entered.leave().await;
            }
        }
        assert_eq!(fixture.waiters.queued().await, 0);
        fixture.end().await;
    })
    .await;
}

/// Inserts a dead waiter, whose `wait` is over, between the first two waiters of the queue.
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

#[tokio::test]
async fn a_cohort_has_up_to_64_members() {
    const CALLERS: usize = 70;
    let mut fixture = Fixture::start().await;
    let guard = holder(&fixture.direct).await;
    let lock = fixture.behind.lock("k").wait(60 * SECOND);
    fixture.waiters.queue_many(CALLERS, &lock).await;
    guard.release().await;
    until_cohort(&fixture.server, 64).await;
    assert_eq!(fixture.waiters.queued().await, CALLERS - 64);
    fixture.waiters.pass(0..CALLERS).await;
    fixture.end().await;
}

/// In another process, `status` shows the first member of a cohort as the holder, and the other members as waiting.
/// This does not depend on which member has the turn.
#[tokio::test]
async fn another_process_sees_the_first_member_and_counts_the_others_as_waiting() {
    let mut fixture = Fixture::start().await;
    let (cohort, mut inside) = fixture.inside(30 * SECOND).await;
    for member in 1..MEMBERS {
        let status = fixture.direct.lock("k").status().await.unwrap();
        let token = status.holder.and_then(|holder| holder.token);
        assert_eq!(token.map(FencingToken::get), Some(cohort.token));
        // The number of waiters includes the caller behind the cohort.
        assert_eq!(status.waiters, MEMBERS - 1 + 1);
        inside.leave().await;
        inside = fixture.waiters.next().await;
        assert_eq!(inside.caller, member);
    }
    inside.leave().await;
    fixture.waiters.pass([BEHIND]).await;
    fixture.end().await;
}
