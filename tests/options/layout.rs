//! Redisson's layout, beside a client that does on the wire what Redisson 4.7 does. `tests/redisson` has the real one.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::StreamExt;
use lock_runtime::{
    ConnectError, KeyError, Layout, LockClient, LockError, OptionsError, Strategy, distributed_lock,
};
use redis::{Client, Value, aio::MultiplexedConnection};
use support::{
    epsilon,
    proxy::FaultProxy,
    server::{RedisServer, shared_server},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

use crate::stores::{MS, SECOND, Store, hold, until};

/// One thread of a JVM service.
struct Jvm {
    redis: MultiplexedConnection,
    lock: String,
    owner: String,
}

impl Jvm {
    async fn at(store: &Store, key: &str) -> Self {
        Self {
            redis: shared_server().await.connection().await,
            lock: store.name(key),
            owner: format!("{}:1", Uuid::new_v4()),
        }
    }

    fn channel(&self) -> String {
        format!("redisson_lock__channel:{{{}}}", self.lock)
    }

    async fn ask<T: redis::FromRedisValue>(&mut self, verb: &str, args: &[&str]) -> T {
        let mut command = redis::cmd(verb);
        command.arg(args);
        command.query_async(&mut self.redis).await.unwrap()
    }

    /// Enters, once more if it is inside; else how long the lease that is in the way still is, in ms.
    async fn try_lock(&mut self, lease: Duration) -> Option<i64> {
        let script = "
            if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
                redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
                redis.call('PEXPIRE', KEYS[1], ARGV[1])
                return nil
            end
            return redis.call('PTTL', KEYS[1])";
        let (lock, owner) = (self.lock.clone(), self.owner.clone());
        let lease = lease.as_millis().to_string();
        self.ask("EVAL", &[script, "1", &lock, &lease, &owner])
            .await
    }

    /// Leaves; whether it is outside now, and nothing if it never was inside.
    async fn unlock(&mut self) -> Option<bool> {
        let script = "
            if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
                return nil
            end
            if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then
                return 0
            end
            redis.call('DEL', KEYS[1])
            redis.call('PUBLISH', KEYS[2], '0')
            return 1";
        let (lock, channel, owner) = (self.lock.clone(), self.channel(), self.owner.clone());
        self.ask("EVAL", &[script, "2", &lock, &channel, &owner])
            .await
    }

    /// How long the lease still is, in ms; below zero without one.
    async fn left(&mut self) -> i64 {
        let lock = self.lock.clone();
        self.ask("PTTL", &[&lock]).await
    }

    /// The hash.
    async fn stored(&mut self) -> HashMap<String, u32> {
        let lock = self.lock.clone();
        self.ask("HGETALL", &[&lock]).await
    }

    /// Enters when it is free, as Redisson waits: it listens, tries, and waits for a message, for no longer than the
    /// lease that was in the way.
    async fn lock(&mut self, lease: Duration) {
        if self.try_lock(lease).await.is_none() {
            return;
        }
        let url = shared_server().await.url();
        let mut listening = Client::open(url).unwrap().get_async_pubsub().await.unwrap();
        listening.subscribe(self.channel()).await.unwrap();
        let mut messages = listening.on_message();
        while let Some(left) = self.try_lock(lease).await {
            let patience = Duration::from_millis(left.try_into().unwrap_or(0));
            if let Ok(message) = timeout(patience, messages.next()).await {
                let payload: String = message.unwrap().get_payload().unwrap();
                assert_eq!(payload, "0");
            }
        }
    }

    /// How many connections listen for a release.
    async fn listeners(&mut self) -> u32 {
        let channel = self.channel();
        let (_, listeners): (String, u32) = self.ask("PUBSUB", &["NUMSUB", &channel]).await;
        listeners
    }
}

#[distributed_lock(key = "order:<id>", wait = "20s")]
async fn pay(id: u64, inside: &AtomicU64) -> Result<u64, LockError> {
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
    tokio::task::yield_now().await;
    inside.fetch_sub(1, Ordering::SeqCst);
    Ok(id)
}

#[tokio::test]
async fn a_hold_of_ours_looks_like_one_of_redissons() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let guard = client.lock("k").lease(20 * SECOND).acquire().await.unwrap();
    let stored = jvm.stored().await;
    let [(owner, 20_000)] = stored.iter().collect::<Vec<_>>()[..] else {
        panic!("{stored:?}");
    };
    let (uuid, number) = owner.split_once(':').unwrap();
    assert_eq!(uuid.len(), 36);
    assert!(Uuid::parse_str(uuid).is_ok(), "{uuid}");
    assert_eq!(number, guard.token().to_string());
    let left = jvm.try_lock(SECOND).await.unwrap();
    assert!((15_000..=20_000).contains(&left), "{left}");
    assert_eq!(jvm.unlock().await, None);
    assert_eq!(jvm.stored().await.len(), 1);
    guard.release().await;
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn a_lease_that_was_changed_from_outside_is_cut_by_the_next_renewal_or_try() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let lock = jvm.lock.clone();
    for change in [&["PEXPIRE", &lock, "3600000"][..], &["PERSIST", &lock]] {
        let lock = client.lock("k").lease(2 * SECOND).renew(true);
        let guard = lock.acquire().await.unwrap();
        let _: i64 = jvm.ask(change[0], &change[1..]).await;
        // By a renewal of its own.
        until(async || (0..=2000).contains(&Jvm::at(&store, "k").await.left().await)).await;
        assert!(guard.remaining() <= 2 * SECOND, "{:?}", guard.remaining());
        guard.release().await;
        // By others, for the holder is gone.
        let lock = client.lock("k").lease(2 * SECOND).renew(false);
        let guard = lock.acquire().await.unwrap();
        let _: i64 = jvm.ask(change[0], &change[1..]).await;
        let busy = client.lock("k").try_acquire().await;
        assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
        let left = jvm.left().await;
        assert!((1..=2000).contains(&left), "{left}");
        drop(guard);
        until(async || store.keys().await.is_empty()).await;
    }
    // A lease that an extension made longer stays.
    let guard = client.lock("k").lease(2 * SECOND).acquire().await.unwrap();
    guard.extend(10 * SECOND).await.unwrap();
    let busy = client.lock("k").try_acquire().await;
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    let left = jvm.left().await;
    assert!((8_000..=12_000).contains(&left), "{left}");
    guard.release().await;
}

#[tokio::test]
async fn the_jvm_enters_when_we_leave_and_we_when_it_leaves() {
    let store = Store::redisson().await;
    for &strategy in store.strategies() {
        let client = store.client().await;
        let mut jvm = Jvm::at(&store, "k").await;
        let guard = hold(&client, "k").await;
        // Told so: the lease that it saw is much longer.
        let told = tokio::join!(timeout(10 * SECOND, jvm.lock(10 * SECOND)), async {
            until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
            guard.release().await;
        });
        told.0.expect("a release of ours is heard");
        // It enters again, and leaves once: its count is its own.
        assert_eq!(jvm.try_lock(10 * SECOND).await, None);
        let lock = client.lock("k").strategy(strategy).wait(20 * SECOND);
        let mut waiting = Box::pin(lock.acquire());
        assert!(timeout(100 * MS, &mut waiting).await.is_err());
        assert_eq!(jvm.unlock().await, Some(false));
        assert!(timeout(300 * MS, &mut waiting).await.is_err());
        assert_eq!(jvm.unlock().await, Some(true));
        waiting.await.unwrap().release().await;
        until(async || jvm.listeners().await == 0).await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    }
}

#[tokio::test]
async fn a_release_of_the_jvm_wakes_us_without_a_look() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let mut fastest = SECOND;
    for _ in 0..10 {
        jvm.lock(10 * SECOND).await;
        let lock = client.lock("k").wait(20 * SECOND);
        let acquiring = lock.acquire();
        let (guard, released) = tokio::join!(acquiring, async {
            until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
            // Its try after that was in vain, too.
            sleep(20 * MS).await;
            jvm.unlock().await.unwrap();
            Instant::now()
        });
        fastest = fastest.min(released.elapsed());
        guard.unwrap().release().await;
        until(async || jvm.listeners().await == 0).await;
    }
    // By looking alone it would take 90 ms on average.
    assert!(fastest < 40 * MS, "{fastest:?}");
}

#[tokio::test]
async fn services_in_rust_and_on_the_jvm_take_turns_and_nobody_is_missed() {
    let store = Store::redisson().await;
    let inside: &'static AtomicU64 = Box::leak(Box::default());
    let mut running = JoinSet::new();
    for service in 0..2 {
        let client = store.client().await;
        for caller in 0..4 {
            let strategy = store.strategies()[(service + caller) % 2];
            let client = client.clone();
            running.spawn(async move {
                for _ in 0..10 {
                    assert_eq!(client.scope(pay(7, inside)).await, Ok(7));
                    let lock = client.lock("order:7").strategy(strategy).wait(20 * SECOND);
                    lock.run(async {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        sleep(MS).await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                    })
                    .await
                    .unwrap();
                }
            });
        }
    }
    for _ in 0..4 {
        let mut jvm = Jvm::at(&store, "order:7").await;
        running.spawn(async move {
            for _ in 0..20 {
                jvm.lock(10 * SECOND).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                sleep(MS).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(jvm.unlock().await, Some(true));
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    until(async || store.keys().await.is_empty()).await;
    let mut jvm = Jvm::at(&store, "order:7").await;
    until(async || jvm.listeners().await == 0).await;
}

#[tokio::test]
async fn what_ends_without_a_word_is_noticed() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let lock = client.lock("k").wait(20 * SECOND);
    // It expires, or is deleted, as by a spin lock's release.
    assert_eq!(jvm.try_lock(400 * MS).await, None);
    let start = Instant::now();
    lock.run(async {}).await.unwrap();
    let took = start.elapsed();
    assert!(took < 600 * MS + epsilon(), "{took:?}");
    assert_eq!(jvm.try_lock(20 * SECOND).await, None);
    let entering = lock.run(async {});
    let (entered, deleted) = tokio::join!(entering, async {
        sleep(100 * MS).await;
        let name = jvm.lock.clone();
        jvm.ask::<()>("DEL", &[&name]).await;
        Instant::now()
    });
    entered.unwrap();
    let took = deleted.elapsed();
    assert!(took < 200 * MS + epsilon(), "{took:?}");
}

#[tokio::test]
async fn a_lease_is_renewed_and_a_forced_unlock_is_a_loss() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let lock = client.lock("k").lease(SECOND).renew(true);
    lock.run(async {
        sleep(3 * SECOND).await;
        assert!(jvm.try_lock(SECOND).await.is_some());
    })
    .await
    .unwrap();
    let forced = lock.run(async {
        let name = jvm.lock.clone();
        jvm.ask::<()>("DEL", &[&name]).await;
        jvm.lock(10 * SECOND).await;
        std::future::pending::<()>().await;
    });
    let lost = timeout(SECOND + epsilon(), forced).await;
    let lost = lost.expect("the holder is told at its next renewal");
    assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
    // What the JVM took stands.
    assert_eq!(jvm.unlock().await, Some(true));
}

#[tokio::test]
async fn a_lock_that_is_kept_tells_the_jvm_its_new_end() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let start = Instant::now();
    let lock = client.lock("k").lease(20 * SECOND).hold_at_least(SECOND);
    let guard = lock.acquire().await.unwrap();
    // It has seen a lease of 20 s.
    let entering = timeout(10 * SECOND, jvm.lock(SECOND));
    let (entered, ()) = tokio::join!(entering, async {
        until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
        // Its try after that was in vain, too.
        sleep(100 * MS).await;
        guard.release().await;
    });
    entered.expect("the end of the lease is heard of");
    let took = start.elapsed();
    let bounds = SECOND - 20 * MS..SECOND + 200 * MS + epsilon();
    assert!(bounds.contains(&took), "{took:?}");
    assert_eq!(jvm.unlock().await, Some(true));
}

#[tokio::test]
async fn who_gives_up_or_is_dropped_listens_no_more() {
    let store = Store::redisson().await;
    let (client, other) = (store.client().await, store.client().await);
    let mut jvm = Jvm::at(&store, "k").await;
    jvm.lock(20 * SECOND).await;
    let lock = client.lock("k").wait(300 * MS);
    for patience in [MS, 2 * MS, 5 * MS, 50 * MS, SECOND] {
        let mut running = JoinSet::new();
        for _ in 0..4 {
            let lock = lock.clone();
            running.spawn(async move { timeout(patience, lock.acquire()).await });
        }
        while let Some(ended) = running.join_next().await {
            if let Ok(ended) = ended.unwrap() {
                let busy = matches!(ended, Err(LockError::Busy { .. }));
                assert!(busy && patience == SECOND, "{ended:?}");
            }
        }
        until(async || jvm.listeners().await == 0).await;
    }
    // One that stays is not made deaf by those who go.
    let staying = other.lock("k").wait(20 * SECOND);
    let entering = staying.acquire();
    let (entered, released) = tokio::join!(entering, async {
        for _ in 0..20 {
            let _ = timeout(5 * MS, other.lock("k").wait(SECOND).acquire()).await;
        }
        until(async || jvm.listeners().await == 1).await;
        assert_eq!(jvm.unlock().await, Some(true));
        Instant::now()
    });
    entered.unwrap().release().await;
    assert!(released.elapsed() < 200 * MS + epsilon());
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn a_new_connection_listens_again() {
    let server = shared_server().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::redisson().await;
    let client = store.through(&proxy.url()).client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    jvm.lock(20 * SECOND).await;
    let lock = client.lock("k").wait(20 * SECOND);
    let entering = lock.acquire();
    let (entered, ()) = tokio::join!(entering, async {
        for _ in 0..3 {
            until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
            proxy.cut();
            until(async || Jvm::at(&store, "k").await.listeners().await == 0).await;
        }
        until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
        jvm.unlock().await.unwrap();
    });
    entered.unwrap().release().await;
    assert_eq!(store.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn tokens_rise_together_with_those_of_a_fenced_lock() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let counter = format!("redisson_lock_token:{{{}}}", jvm.lock);
    let mut newest = hold(&client, "k").await.token().get();
    until(async || store.keys().await.is_empty()).await;
    // A lock without a fenced one leaves no counter behind; the first token of a fenced one is the JVM's.
    let ahead = (newest + 1_000_000).to_string();
    for theirs in ["1", &ahead] {
        jvm.ask::<()>("SET", &[&counter, theirs]).await;
        for _ in 0..3 {
            let guard = hold(&client, "k").await;
            let ours = guard.token().get();
            guard.release().await;
            let theirs: u64 = jvm.ask("INCR", &[&counter]).await;
            assert!(newest < ours && ours < theirs, "{newest} {ours} {theirs}");
            newest = theirs;
        }
    }
    jvm.ask::<()>("DEL", &[&counter]).await;
}

#[tokio::test]
async fn status_shows_holders_of_both_kinds() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let lock = client.lock("k").lease(20 * SECOND);
    assert_eq!(lock.status().await.unwrap().holder, None);
    let guard = lock.acquire().await.unwrap();
    let ours = lock.status().await.unwrap().holder.unwrap();
    assert_eq!(ours.token, Some(guard.token()));
    guard.release().await;
    jvm.lock(20 * SECOND).await;
    let theirs = lock.status().await.unwrap().holder.unwrap();
    let uuid = jvm.owner.trim_end_matches(":1").replace('-', "");
    assert_eq!((theirs.owner.to_string(), theirs.token), (uuid, None));
    assert!(theirs.remaining.unwrap() > 15 * SECOND);
    jvm.unlock().await.unwrap();
}

#[tokio::test]
async fn the_other_layout_is_refused_on_either_side() {
    let native = Store::redis().await;
    let client = native.client().await;
    // A name that both can have.
    let redisson = native.builder().layout(Layout::Redisson);
    let redisson = redisson.connect().await.unwrap();
    let same = |client: &LockClient| {
        let lock = client.lock("{k}").lease(20 * SECOND);
        lock.wait(300 * MS)
    };
    let mut redis = shared_server().await.connection().await;
    for (holder, other) in [(&client, &redisson), (&redisson, &client)] {
        let guard = same(holder).acquire().await.unwrap();
        let strategies = [Strategy::Notify, Strategy::Spin];
        for refused in [
            same(other).try_acquire().await.err(),
            same(other).strategy(strategies[0]).acquire().await.err(),
            same(other).strategy(strategies[1]).acquire().await.err(),
            same(other).status().await.err(),
        ] {
            match refused {
                Some(LockError::WrongLayout { key }) => assert_eq!(key.as_str(), "{k}"),
                refused => panic!("{refused:?}"),
            }
        }
        let stands = same(holder).status().await.unwrap().holder.unwrap();
        assert_eq!(stands.token, Some(guard.token()));
        guard.release().await;
        until(async || native.keys().await.is_empty()).await;
    }
    // Neither is other data a lock.
    let name = native.name("other");
    let pushed: Value = redis::cmd("RPUSH")
        .arg(&name)
        .arg(1)
        .query_async(&mut redis)
        .await
        .unwrap();
    assert_eq!(pushed, Value::Int(1));
    let other = client.lock("other").try_acquire().await;
    assert!(matches!(other, Err(LockError::WrongLayout { .. })));
    let deleted = redis::cmd("DEL").arg(&name).exec_async(&mut redis).await;
    deleted.unwrap();
}

#[tokio::test]
async fn a_refusal_leaves_nothing_to_clean_up() {
    let native = Store::redis().await;
    let client = native.client().await;
    let mut redis = shared_server().await.connection().await;
    let name = native.name("k");
    let hash = redis::cmd("HSET").arg(&name).arg("field").arg(1).to_owned();
    hash.exec_async(&mut redis).await.unwrap();
    let lock = client.lock("k").lease(20 * SECOND).wait(SECOND);
    let _ = lock.acquire().await;
    let before = client.stats();
    for _ in 0..10 {
        for strategy in [Strategy::Handoff, Strategy::Notify, Strategy::Spin] {
            let refused = lock.clone().strategy(strategy).acquire().await.err();
            let is_wrong = matches!(refused, Some(LockError::WrongLayout { .. }));
            assert!(is_wrong, "{refused:?}");
        }
    }
    let start = Instant::now();
    client.shutdown().await;
    assert!(start.elapsed() < epsilon(), "{:?}", start.elapsed());
    let after = client.stats();
    assert_eq!(after.connections, before.connections);
    assert!(
        after.commands <= before.commands + 60,
        "{before:?} {after:?}"
    );
    let deleted = redis::cmd("DEL").arg(&name).exec_async(&mut redis).await;
    deleted.unwrap();
}

#[tokio::test]
async fn a_lock_that_is_overwritten_is_lost_at_the_next_renewal() {
    for store in [Store::redis().await, Store::redisson().await] {
        let client = store.client().await;
        let mut redis = shared_server().await.connection().await;
        let lock = client.lock("k").lease(3 * SECOND).renew(true);
        let name = store.name("k");
        let start = Instant::now();
        let lost = lock.run(async {
            let overwritten = redis::pipe().del(&name).rpush(&name, 1).to_owned();
            overwritten.exec_async(&mut redis).await.unwrap();
            std::future::pending::<()>().await;
        });
        let lost = lost.await;
        assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
        assert!(
            start.elapsed() < SECOND + epsilon(),
            "{:?}",
            start.elapsed()
        );
        let deleted = redis::cmd("DEL").arg(&name).exec_async(&mut redis).await;
        deleted.unwrap();
    }
}

#[tokio::test]
async fn two_locks_of_one_channel_are_two_locks() {
    let server = RedisServer::start().await;
    let client = LockClient::builder()
        .url(server.url())
        .layout(Layout::Redisson)
        .connect()
        .await
        .unwrap();
    let guard = hold(&client, "a").await;
    let waits = client.lock("a").wait(20 * SECOND);
    let mut waiting = Box::pin(waits.acquire());
    assert!(timeout(300 * MS, &mut waiting).await.is_err());
    let other = client.lock("{a}").wait(SECOND).acquire().await;
    other.expect("nobody holds it").release().await;
    guard.release().await;
    waiting.await.unwrap().release().await;
    let reserved = client.lock("lock:fence").try_acquire().await.err();
    let reserved_name = LockError::InvalidKey(KeyError::ReservedName);
    assert_eq!(reserved, Some(reserved_name));
}

/// The rights that the README names beside the others.
#[tokio::test]
async fn a_user_with_few_rights_can_share_locks() {
    let server = RedisServer::start().await;
    let readme = include_str!("../../README.md");
    let of = |start: &str| {
        let line = readme.lines().find(|line| line.starts_with(start));
        line.expect("the README names the rights")
            .split(' ')
            .skip(3)
    };
    let mut admin = server.connection().await;
    for rules in [of("ACL SETUSER locks"), of("ACL SETUSER jvm-locks")] {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER")
            .arg("locks")
            .arg(rules.collect::<Vec<_>>());
        user.exec_async(&mut admin).await.unwrap();
    }
    let url = format!("redis://locks:secret@127.0.0.1:{}/", server.port());
    let builder = || LockClient::builder().url(&url).layout(Layout::Redisson);
    let client = builder().connect().await.unwrap();
    let lock = client.lock("order:7").wait(5 * SECOND);
    let guard = lock
        .clone()
        .hold_at_least(300 * MS)
        .acquire()
        .await
        .unwrap();
    let (next, _) = tokio::join!(lock.acquire(), guard.release());
    next.unwrap().release().await;
    client.shutdown().await;
    let mut taken = redis::cmd("ACL");
    taken.arg(&["SETUSER", "locks", "resetchannels", "&lock:session:*"]);
    taken.exec_async(&mut admin).await.unwrap();
    let refused = builder().connect().await.err();
    assert!(
        matches!(refused, Some(ConnectError::Permission { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_the_layout_has_not_is_refused() {
    let server = RedisServer::start().await;
    let builder = || LockClient::builder().layout(Layout::Redisson);
    for url in ["memory:", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"] {
        let refused = builder().url(url).connect().await.err();
        assert_eq!(refused, Some(ConnectError::UnsupportedLayout), "{url}");
    }
    let queueing = builder().url(server.url()).strategy(Strategy::Handoff);
    let refused = queueing.connect().await.err();
    let no_queue = OptionsError::NoQueue;
    assert_eq!(refused, Some(ConnectError::InvalidDefaults(no_queue)));
    // Without a namespace the name is the key, as for `getLock`.
    let client = builder().url(server.url()).connect().await.unwrap();
    let refused = client.lock("order:7").strategy(Strategy::Handoff);
    let refused = refused.acquire().await.err();
    assert_eq!(refused, Some(LockError::InvalidOptions(no_queue)));
    assert_eq!(server.keys().await, [] as [String; 0]);
    let guard = hold(&client, "order:7").await;
    assert_eq!(server.keys().await, ["lock:fence", "order:7"]);
    guard.release().await;
    let guard = client.lock("{order}:7").acquire().await.unwrap();
    assert_eq!(server.keys().await, ["lock:fence", "{order}:7"]);
    guard.release().await;
}
