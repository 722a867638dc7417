//! Queue entries that are not waiters: left by an older version of this crate, or by another program. The scripts skip
//! these entries. Callers acquire and release the lock, and the next waiter enters.

use lock_runtime::{LockClient, ReleaseOutcome};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use support::{epsilon, server::shared_server};
use tokio::time::{Instant, sleep};

use crate::stores::{MS, SECOND, Store, hold, until, until_waiting};

const OWNER: &str = "0a0000000000000000000000000000a1";
const SESSION: &str = "5e5510000000000000000000000000a1";

/// Returns entries with their scores.
fn leftovers() -> Vec<(&'static str, Vec<u8>)> {
    let waiter = |rest: &str| format!("{OWNER}|{SESSION}|{rest}").into_bytes();
    let endless = "9999999999999999";
    vec![
        // An older version asked with this entry for a message when the lock is free.
        ("inf", format!("notify|{SESSION}").into_bytes()),
        ("1", b"garbage".to_vec()),
        ("-inf", b"a|b|c|d|e".to_vec()),
        ("-5", Vec::new()),
        ("1.5", b"\xff\xfe|\x00".to_vec()),
        ("9.2e18", b"0|1".to_vec()),
        ("1e300", waiter("30000|5000|shop")),
        ("inf", waiter("30000|5000|shop")),
        ("1", waiter("30000")),
        ("1", waiter("30000|x|shop")),
        // A lease of 0 would delete the key of the grant.
        ("1", waiter(&format!("0|{endless}|shop"))),
        (
            "1",
            format!("abc|{SESSION}|30000|{endless}|shop").into_bytes(),
        ),
        // The scripts compare this part of an entry with the session that has missed its claim.
        ("1", format!("{}{SESSION}", "x".repeat(33)).into_bytes()),
    ]
}

struct Fixture {
    store: Store,
    redis: MultiplexedConnection,
    score: &'static str,
    entry: Vec<u8>,
}

impl Fixture {
    fn queue(&self) -> String {
        format!("{}:queue", self.store.name("k"))
    }

    async fn plant(&self) {
        let (queue, mut redis) = (self.queue(), self.redis.clone());
        let add = redis::cmd("ZADD")
            .arg(queue)
            .arg(self.score)
            .arg(&self.entry)
            .exec_async(&mut redis)
            .await;
        add.unwrap();
        let claim = format!("{}:claim", self.store.name("k"));
        let _: () = redis.pset_ex(claim, SESSION, 2500).await.unwrap();
    }

    async fn wait_until_all_is_gone(&self) {
        until(async || self.store.keys().await.is_empty()).await;
    }
}

async fn enters_soon(client: &LockClient, what: &str) {
    let start = Instant::now();
    let entered = client.lock("k").wait(20 * SECOND).run(async {}).await;
    assert_eq!(entered, Ok(()), "{what}");
    let took = start.elapsed();
    assert!(took < 200 * MS + epsilon(), "{what}: {took:?}");
}

#[tokio::test]
async fn entries_that_are_no_waiters_are_skipped() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let redis = shared_server().await.connection().await;
    for (score, entry) in leftovers() {
        let what = format!("{score} {:?}", String::from_utf8_lossy(&entry));
        let fixture = Fixture {
            store: store.clone(),
            redis: redis.clone(),
            score,
            entry,
        };
        let lock = client.lock("k").wait(20 * SECOND);
        // The lock is free.
        fixture.plant().await;
        enters_soon(&client, &what).await;
        fixture.wait_until_all_is_gone().await;
        fixture.plant().await;
        let tried = lock.try_acquire().await.expect(&what);
        assert_eq!(tried.release().await, ReleaseOutcome::Released, "{what}");
        fixture.wait_until_all_is_gone().await;
        fixture.plant().await;
        let several = client.locks(["k", "other"]).run(async {}).await;
        assert_eq!(several, Ok(()), "{what}");
        fixture.wait_until_all_is_gone().await;

        // The lock is held, and callers of two processes wait, alone and in a batch.
        for planted_first in [true, false] {
            let guard = hold(&other, "k").await;
            if planted_first {
                fixture.plant().await;
            }
            let before = usize::from(planted_first);
            let waiting = [&other, &client, &client, &client, &client].map(|client| {
                let lock = client.lock("k").wait(20 * SECOND);
                tokio::spawn(async move { lock.run(async {}).await })
            });
            until_waiting(&other, "k", before + waiting.len()).await;
            if !planted_first {
                fixture.plant().await;
            }
            lock.waiters(100).await.expect(&what);
            let released = Instant::now();
            assert_eq!(guard.release().await, ReleaseOutcome::Released, "{what}");
            for entered in waiting {
                assert_eq!(entered.await.unwrap(), Ok(()), "{what}");
            }
            let took = released.elapsed();
            assert!(took < 400 * MS + epsilon(), "{what}: {took:?}");
            fixture.wait_until_all_is_gone().await;
        }

        // An operator deletes the grant, and the `wait` of a caller ends before the next probe.
        let guard = hold(&other, "k").await;
        let leaving = tokio::spawn(client.lock("k").wait(150 * MS).acquire());
        until_waiting(&other, "k", 1).await;
        fixture.plant().await;
        let _: usize = redis.clone().del(store.name("k")).await.unwrap();
        let entered = leaving.await.unwrap();
        entered.expect(&what).release().await;
        guard.release().await;
        fixture.wait_until_all_is_gone().await;
    }
}

/// Two entries of a session that is listening are malformed. One is before all waiters of this session, and one is
/// between them.
#[tokio::test]
async fn malformed_entries_of_a_session_get_no_grant() {
    let store = Store::redis().await;
    let [client, other] = store.clients().await;
    let mut redis = shared_server().await.connection().await;
    let queue = format!("{}:queue", store.name("k"));
    let guard = hold(&other, "k").await;
    let call = || {
        let lock = client.lock("k").wait(20 * SECOND);
        tokio::spawn(async move { lock.run(async {}).await })
    };
    let first = call();
    until_waiting(&other, "k", 1).await;
    let entries: Vec<(String, f64)> = redis.zrange_withscores(&queue, 0, -1).await.unwrap();
    let fields: Vec<&str> = entries[0].0.split('|').collect();
    let short = format!("abc|{}|{}|20000|shop", fields[1], fields[2]);
    let place = format!("{:.0}", entries[0].1 - 1.0);
    let _: usize = redis.zadd(&queue, short, place).await.unwrap();
    let malformed = format!("{OWNER}|{}|{}|x", fields[1], fields[2]);
    let place = format!("{:.0}", entries[0].1 + 1.0);
    let _: usize = redis.zadd(&queue, malformed, place).await.unwrap();
    let last = call();
    until_waiting(&other, "k", 4).await;
    sleep(MS).await;
    let released = Instant::now();
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
    for entered in [first, last] {
        assert_eq!(entered.await.unwrap(), Ok(()));
    }
    let took = released.elapsed();
    assert!(took < 400 * MS + epsilon(), "{took:?}");
    until(async || store.keys().await.is_empty()).await;
}
