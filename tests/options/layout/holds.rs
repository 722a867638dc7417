//! Holds in Redisson's layout, as this crate and a JVM see them: leases, tokens and losses.

use lock_runtime::{KeyError, Layout, LockClient, LockError};
use support::{
    assert_busy, assert_lost, epsilon,
    server::{RedisServer, shared_server},
};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::Jvm;
use crate::stores::{MS, SECOND, Store, hold, until};

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
        // The next renewal shortens the changed lease to the length that the holder requested.
        until(async || (0..=2000).contains(&Jvm::at(&store, "k").await.left().await)).await;
        assert!(guard.remaining() <= 2 * SECOND, "{:?}", guard.remaining());
        guard.release().await;
        // A fixed lease is not renewed, so the next attempt of another caller shortens the changed lease.
        let lock = client.lock("k").lease(2 * SECOND).renew(false);
        let guard = lock.acquire().await.unwrap();
        let _: i64 = jvm.ask(change[0], &change[1..]).await;
        let busy = client.lock("k").try_acquire().await;
        assert_busy(&busy);
        let left = jvm.left().await;
        assert!((1..=2000).contains(&left), "{left}");
        drop(guard);
        until(async || store.keys().await.is_empty()).await;
    }
    // The attempt of another caller does not shorten a lease that `extend` has lengthened.
    let guard = client.lock("k").lease(2 * SECOND).acquire().await.unwrap();
    guard.extend(10 * SECOND).await.unwrap();
    let busy = client.lock("k").try_acquire().await;
    assert_busy(&busy);
    let left = jvm.left().await;
    assert!((8_000..=12_000).contains(&left), "{left}");
    guard.release().await;
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
    let lost = lost.expect("the holder is notified at its next renewal");
    assert_lost(&lost);
    // The JVM still holds the lock after the client has lost it.
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
    // The JVM's first attempt reads a lease of 20 s. The JVM enters in time only if the release notifies it that the
    // lease now ends with the minimum hold.
    let entering = timeout(10 * SECOND, jvm.lock(SECOND));
    let (entered, ()) = tokio::join!(entering, async {
        until(async || Jvm::at(&store, "k").await.listeners().await == 1).await;
        // After this pause, the JVM has subscribed, tried again, and found the lock taken.
        sleep(100 * MS).await;
        guard.release().await;
    });
    entered.expect("the JVM is notified that the lease ends earlier");
    let took = start.elapsed();
    let bounds = SECOND - 20 * MS..SECOND + 200 * MS + epsilon();
    assert!(bounds.contains(&took), "{took:?}");
    assert_eq!(jvm.unlock().await, Some(true));
}

#[tokio::test]
async fn tokens_rise_together_with_those_of_a_fenced_lock() {
    let store = Store::redisson().await;
    let client = store.client().await;
    let mut jvm = Jvm::at(&store, "k").await;
    let counter = format!("redisson_lock_token:{{{}}}", jvm.lock);
    let mut newest = hold(&client, "k").await.token().get();
    until(async || store.keys().await.is_empty()).await;
    // This crate does not create Redisson's token counter. First, the test sets the counter to 1, its value after a JVM
    // has taken the first token. Then the test sets the counter to a value that is far ahead of this crate's tokens.
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
        assert_lost(&lost);
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
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    let guard = hold(&client, "a").await;
    let waits = client.lock("a").wait(20 * SECOND);
    let mut waiting = Box::pin(waits.acquire());
    assert!(timeout(300 * MS, &mut waiting).await.is_err());
    let other = client.lock("{a}").wait(SECOND).acquire().await;
    other.expect("nobody holds the other lock").release().await;
    guard.release().await;
    waiting.await.unwrap().release().await;
    let reserved = client.lock("lock:fence").try_acquire().await.err();
    let reserved_name = LockError::InvalidKey(KeyError::ReservedName);
    assert_eq!(reserved, Some(reserved_name));
}
