//! The URLs, options and locks that clients with Redisson's layout refuse, and the rights that a user needs for this
//! layout.

use lock_runtime::{
    ConnectError, Layout, LockClient, LockError, OptionsError, Strategy, distributed_lock,
};
use redis::Value;
use support::{
    epsilon,
    rights::Deployment,
    server::{RedisServer, ask, shared_server},
};
use tokio::time::Instant;

use crate::stores::{MS, SECOND, Store, hold, until};

#[tokio::test]
async fn the_other_layout_is_refused_on_either_side() {
    let native = Store::redis().await;
    let client = native.client().await;
    // Both layouts store the lock of the key `{k}` under the same Redis key.
    let redisson = native.builder().layout(Layout::Redisson);
    let redisson = redisson.connect_within(support::PATIENCE).await.unwrap();
    let same = |client: &LockClient| {
        let lock = client.lock("{k}").lease(20 * SECOND);
        lock.wait(300 * MS)
    };
    let mut redis = shared_server().await.connection().await;
    for (holder, other) in [(&client, &redisson), (&redisson, &client)] {
        let guard = same(holder).acquire().await.unwrap();
        for refused in [
            same(other).try_acquire().await.err(),
            same(other).acquire().await.err(),
            same(other).strategy(Strategy::Spin).acquire().await.err(),
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
    // A lock whose key stores data of another type is also refused.
    let name = native.name("other");
    let pushed: Value = ask(&mut redis, redis::cmd("RPUSH").arg(&name).arg(1)).await;
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
    ask::<()>(
        &mut redis,
        redis::cmd("HSET").arg(&name).arg("field").arg(1),
    )
    .await;
    let lock = client.lock("k").lease(20 * SECOND).wait(SECOND);
    let _ = lock.acquire().await;
    let before = client.stats();
    for _ in 0..10 {
        for strategy in [Strategy::Handoff, Strategy::Spin] {
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

/// A user needs only the rights that docs/guides/acl.md lists for locks that are shared with Redisson.
#[tokio::test]
async fn a_user_with_few_rights_can_share_locks() {
    let server = RedisServer::start().await;
    let mut admin = server.connection().await;
    ask::<()>(
        &mut admin,
        redis::cmd("ACL").arg(Deployment::Redisson.printed()),
    )
    .await;
    let url = format!("redis://locks:secret@127.0.0.1:{}/", server.port());
    let builder = || LockClient::builder().url(&url).layout(Layout::Redisson);
    let client = builder().connect_within(support::PATIENCE).await.unwrap();
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
    ask::<()>(
        &mut admin,
        redis::cmd("ACL").arg(&["SETUSER", "locks", "resetchannels", "&lock:session:*"]),
    )
    .await;
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
    // Without a namespace, the lock is stored under the key itself, as with Redisson's `getLock`.
    let client = builder()
        .url(server.url())
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
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

#[distributed_lock(key = "order:<id>", strategy = notify)]
async fn notified(id: u32) -> Result<u32, LockError> {
    Ok(id)
}

/// Only locks in Redisson's layout have the strategy `notify`. In process, a call with `notify` queues.
#[tokio::test]
async fn other_layouts_have_no_notify() {
    let not_redisson = OptionsError::NotRedisson;
    for store in [
        Store::redis().await,
        Store::sentinel().await,
        Store::cluster().await,
        Store::redlock().await,
    ] {
        let waiting = store.builder().strategy(Strategy::Notify);
        let refused = waiting.connect().await.err();
        assert_eq!(refused, Some(ConnectError::InvalidDefaults(not_redisson)));
        let client = store.client().await;
        for refused in [
            client.scope(notified(7)).await.err(),
            client
                .lock("k")
                .strategy(Strategy::Notify)
                .try_acquire()
                .await
                .err(),
            client
                .locks(["a", "b"])
                .strategy(Strategy::Notify)
                .acquire()
                .await
                .err(),
        ] {
            assert_eq!(
                refused,
                Some(LockError::InvalidOptions(not_redisson)),
                "{store:?}"
            );
        }
        assert_eq!(store.keys().await, [] as [String; 0]);
    }
    let store = Store::memory();
    let waiting = store.builder().strategy(Strategy::Notify);
    let client = waiting.connect_within(support::PATIENCE).await.unwrap();
    assert_eq!(client.scope(notified(7)).await, Ok(7));
    let guard = hold(&client, "k").await;
    let waiter = tokio::spawn(client.lock("k").acquire());
    until(async || client.lock("k").status().await.unwrap().waiters == 1).await;
    guard.release().await;
    waiter.await.unwrap().unwrap().release().await;
}
