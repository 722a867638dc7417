//! The server stores who holds a lock and who waits for it: the application, host, process and function of each caller.

use std::time::Duration;

use lock_runtime::{Caller, HeldBy, LockClient, LockError, distributed_lock};
use support::{
    server::{RedisServer, ask},
    stores::{Store, hold, on_every_store, until_waiting},
};
use tokio::time::sleep;

use crate::stores::{MS, SECOND};

async fn client(store: &Store, application: &str) -> LockClient {
    store
        .builder()
        .application(application)
        .connect_within(support::PATIENCE)
        .await
        .unwrap()
}

/// Returns the caller that holds the lock, and the time since the grant.
async fn holder(client: &LockClient, key: &str) -> (Option<Caller>, Option<Duration>) {
    let status = client.lock(key).status().await.unwrap();
    let holder = status.holder.expect("the lock is held");
    (holder.caller, holder.held_for)
}

fn held_by<T: std::fmt::Debug>(result: Result<T, LockError>) -> Option<HeldBy> {
    match result {
        Err(LockError::Busy { held_by, .. }) => held_by.map(|held_by| *held_by),
        other => panic!("{other:?}"),
    }
}

#[distributed_lock(key = "order:<id>", client = shop)]
async fn pay(shop: &LockClient, id: u64, viewer: &LockClient) -> Result<Caller, LockError> {
    let (caller, _) = holder(viewer, &format!("order:{id}")).await;
    Ok(caller.expect("the holder is known"))
}

#[tokio::test]
async fn the_status_names_the_function_that_holds_the_lock() {
    on_every_store(async |store| {
        let (shop, viewer) = (client(&store, "shop").await, store.client().await);
        if store.is_redisson() {
            let held = hold(&shop, "k").await;
            assert_eq!(holder(&viewer, "k").await, (None, None));
            held.release().await;
            return;
        }
        let caller = pay(&shop, 42, &viewer).await.unwrap();
        assert_eq!(caller.application, "shop");
        assert_eq!(caller.pid, std::process::id());
        assert_eq!(caller.function, "options::callers::pay");
        let host = std::process::Command::new("uname")
            .arg("-n")
            .output()
            .unwrap();
        assert_eq!(caller.host, String::from_utf8(host.stdout).unwrap().trim());
        // With the explicit API, the label of the lock is the function of the caller.
        let lock = shop.lock("k").label("nightly report").lease(20 * SECOND);
        let guard = lock.acquire().await.unwrap();
        sleep(300 * MS).await;
        let (caller, held_for) = holder(&viewer, "k").await;
        assert_eq!(caller.unwrap().function, "nightly report");
        let held_for = held_for.unwrap();
        // A client knows the server's clock only up to the time of a round trip, which takes long on a busy machine.
        assert!(
            held_for >= 200 * MS && held_for < 10 * SECOND,
            "{held_for:?}"
        );
        guard.release().await;
        let guard = hold(&shop, "k").await;
        assert_eq!(holder(&viewer, "k").await.0.unwrap().function, "");
        guard.release().await;
    })
    .await;
}

#[tokio::test]
async fn a_waiter_takes_its_words_into_its_grant() {
    for store in [
        Store::redis().await,
        Store::cluster().await,
        Store::sentinel().await,
    ] {
        eprintln!("on {store:?}");
        let (first, second) = (
            client(&store, "first").await,
            client(&store, "second").await,
        );
        let guard = hold(&first, "k").await;
        let lock = second.lock("k").label("late").wait(20 * SECOND);
        let waiting = tokio::spawn(lock.acquire());
        until_waiting(&first, "k", 1).await;
        let waiters = first.lock("k").waiters(10).await.unwrap();
        let waiter = waiters[0].caller.clone().unwrap();
        assert_eq!(
            (&*waiter.application, &*waiter.function),
            ("second", "late")
        );
        sleep(100 * MS).await;
        guard.release().await;
        let second_guard = waiting.await.unwrap().unwrap();
        let (caller, held_for) = holder(&first, "k").await;
        assert_eq!(caller, Some(waiter));
        assert!(
            held_for.unwrap() < 90 * MS,
            "the time starts at the grant: {held_for:?}"
        );
        second_guard.release().await;
    }
}

/// The name of an application and the label of a lock can contain the characters that separate the fields of grants and
/// of queue entries.
#[tokio::test]
async fn words_may_contain_separators() {
    const HOSTILE: &str = "a|b c/d%e\n||'\"\u{0}é🔒";
    on_every_store(async |store| {
        let one = client(&store, HOSTILE).await;
        let long = "a|".repeat(200);
        let two = client(&store, &long).await;
        for (hold_at_least, lease) in [(Duration::ZERO, SECOND), (20 * MS, 20 * SECOND)] {
            let lock = |client: &LockClient| {
                client
                    .lock("k")
                    .label(HOSTILE)
                    .wait(20 * SECOND)
                    .lease(lease)
                    .renew(true)
                    .hold_at_least(hold_at_least)
            };
            let calls = (0..12).map(|number| {
                let client = if number % 3 == 0 { &two } else { &one };
                let lock = lock(client).label(if number % 2 == 0 { HOSTILE } else { "|" });
                tokio::spawn(lock.run(async { sleep(5 * MS).await }))
            });
            for call in calls.collect::<Vec<_>>() {
                call.await.unwrap().unwrap();
            }
            let guard = lock(&one).acquire().await.unwrap();
            guard.extend(2 * SECOND).await.unwrap();
            if let (Some(caller), _) = holder(&two, "k").await {
                let visible = HOSTILE.replace(['\n', '\u{0}'], "\u{fffd}");
                assert_eq!(
                    (&*caller.application, &*caller.function),
                    (&*visible, &*visible)
                );
            }
            guard.release().await;
            let guard = lock(&two).acquire().await.unwrap();
            if let (Some(caller), _) = holder(&one, "k").await {
                assert_eq!(caller.application.len(), 64);
            }
            let both = one.locks(["k", "other"]).label(HOSTILE).try_acquire().await;
            assert!(matches!(both, Err(LockError::Busy { .. })), "{both:?}");
            guard.release().await;
        }
        let both = one.locks(["k", "other"]).label(HOSTILE).wait(SECOND);
        both.acquire().await.unwrap().release().await;
    })
    .await;
}

#[tokio::test]
async fn busy_names_the_holder_and_the_waiters_before_the_call() {
    on_every_store(async |store| {
        let [other, third] = store.clients().await;
        let shop = client(&store, "shop").await;
        let lock = shop.lock("k").label("pay").lease(20 * SECOND);
        let guard = lock.acquire().await.unwrap();
        let tried = held_by(other.lock("k").try_acquire().await);
        if store.is_redisson() || store.is_redlock() {
            assert_eq!(tried, None);
            guard.release().await;
            return;
        }
        let tried = tried.expect("the server names the holder");
        assert_eq!(tried.holder.token, Some(guard.token()));
        assert_eq!(tried.holder.caller.unwrap().application, "shop");
        assert_eq!(tried.ahead, None);
        let waiting = tokio::spawn(third.lock("k").wait(20 * SECOND).acquire());
        until_waiting(&shop, "k", 1).await;
        let busy = other.lock("k").wait(100 * MS).acquire().await;
        let text = lock_core::advice::advised(busy.as_ref().unwrap_err());
        let pid = std::process::id();
        assert!(text.contains("held by shop@"), "{text}");
        assert!(text.contains(&format!("(pid {pid}) `pay` for ")), "{text}");
        let waited = held_by(busy).expect("the server names the holder");
        assert_eq!(waited.ahead, Some(1));
        assert!(waited.holder.held_for.unwrap() >= 90 * MS);
        for strategy in store.strategies() {
            let lock = other.lock("k").strategy(*strategy).wait(50 * MS);
            let waited = held_by(lock.acquire().await).expect("the server names the holder");
            assert_eq!(waited.holder.token, Some(guard.token()), "{strategy:?}");
        }
        guard.release().await;
        waiting.await.unwrap().unwrap().release().await;
    })
    .await;
}

/// Another program has stored bytes under the lock's name. The bytes do not form a grant, and some are not valid UTF-8.
/// Each call nevertheless finds the lock busy, and no call returns another error.
#[tokio::test]
async fn bytes_that_are_no_grant_keep_callers_out() {
    let store = Store::redis().await;
    let client = store.client().await;
    let mut redis = support::server::shared_server().await.connection().await;
    for bytes in [&b"\xff\xfe|\x00"[..], b"hello", &[b'x'; 100_000]] {
        let mut set = redis::cmd("SET");
        set.arg(store.name("k")).arg(bytes);
        let _: () = support::server::ask(&mut redis, &set).await;
        assert_eq!(held_by(client.lock("k").try_acquire().await), None);
        assert_eq!(
            held_by(client.lock("k").wait(50 * MS).acquire().await),
            None
        );
        // The second caller of a session sends its request together with later callers.
        let lock = client.lock("k").wait(500 * MS);
        let waiting = tokio::join!(lock.acquire(), lock.acquire(), lock.acquire());
        let waited = [waiting.0, waiting.1, waiting.2].map(held_by);
        assert_eq!(waited, [const { None }; 3]);
        let both = client.locks(["f", "k"]).try_acquire().await;
        assert!(matches!(both, Err(LockError::Busy { .. })), "{both:?}");
        assert_eq!(client.lock("k").status().await.unwrap().holder, None);
    }
    store.delete("k").await;
    client.lock("k").run(async {}).await.unwrap();
}

/// Another program stores data under the names of two locks for which a session waits: a text that never expires, and a
/// hash. The session still looks at its locks five times a second, and still finds the end of another lock's lease.
#[tokio::test]
async fn data_of_another_program_does_not_change_the_probes() {
    let server = RedisServer::start().await;
    let client = LockClient::connect(&server.url()).await.unwrap();
    let other = LockClient::connect(&server.url()).await.unwrap();
    for (key, lease) in [("hash", 60 * SECOND), ("ended", SECOND)] {
        let lock = other.lock(key).lease(lease).renew(false);
        std::mem::forget(lock.acquire().await.unwrap());
    }
    let mut redis = server.connection().await;
    ask::<()>(
        &mut redis,
        redis::cmd("SET").arg("{lock:text}").arg("hello"),
    )
    .await;
    let [hash, ended, text] = ["hash", "ended", "text"]
        .map(|key| tokio::spawn(client.lock(key).wait(20 * SECOND).acquire()));
    until_waiting(&other, "hash", 1).await;
    until_waiting(&other, "ended", 1).await;
    let (mut delete, mut set) = (redis::cmd("DEL"), redis::cmd("HSET"));
    ask::<()>(&mut redis, delete.arg("{lock:hash}")).await;
    ask::<()>(&mut redis, set.arg("{lock:hash}").arg("field").arg("value")).await;
    let refused = tokio::time::timeout(5 * SECOND, hash).await;
    let refused = refused.expect("the caller is refused soon").unwrap();
    assert!(
        matches!(refused, Err(LockError::WrongLayout { .. })),
        "{refused:?}"
    );
    ended.await.unwrap().unwrap().release().await;
    server.reset_stats().await;
    tokio::time::sleep(SECOND).await;
    let calls = server.calls().await;
    assert!(calls["evalsha"] <= 12, "{calls:?}");
    text.abort();
}
