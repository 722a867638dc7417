//! What a tool for operators needs: the scan of all locks, the queue of a lock, and the forced release.

use std::{collections::BTreeSet, time::Duration};

use lock_runtime::{AccessMode, ConnectError, ForcedRelease, LockClient, LockError, LossReason};
use support::{
    assert_lost, log,
    proxy::FaultProxy,
    server::{RedisServer, ask, shared_server},
    stores::{Store, hold, until_waiting},
};
use tokio::time::{sleep, timeout};
use tracing::Level;
use uuid::Uuid;

use crate::stores::{MS, SECOND};

/// Returns the stores whose locks can be listed.
async fn on_servers() -> [Store; 4] {
    [
        Store::redis().await,
        Store::cluster().await,
        Store::sentinel().await,
        Store::redlock().await,
    ]
}

async fn listed(client: &LockClient, prefix: &str) -> Vec<String> {
    let mut scan = client.scan(prefix).unwrap();
    let mut all = Vec::new();
    while let Some(keys) = scan.next_page().await.unwrap() {
        all.extend(keys.iter().map(|key| key.as_str().to_owned()));
    }
    assert!(scan.next_page().await.unwrap().is_none());
    all
}

#[tokio::test]
async fn a_scan_finds_each_lock_of_its_namespace_once() {
    for store in on_servers().await {
        eprintln!("on {store:?}");
        let [client, other] = store.clients().await;
        let mut expected = BTreeSet::new();
        let mut guards = Vec::new();
        for number in 0..50 {
            let key = if number % 2 == 0 {
                format!("order:{number}")
            } else {
                format!("{{order:{number}}}:pay")
            };
            guards.push(hold(&client, &key).await);
            expected.insert(key);
        }
        guards.push(hold(&client, "else").await);
        let neighbour = other
            .lock("order:elsewhere")
            .namespace(Uuid::new_v4().to_string());
        guards.push(neighbour.acquire().await.unwrap());
        let found = listed(&client, "").await;
        let all: BTreeSet<_> = found.iter().cloned().collect();
        assert_eq!(all.len(), found.len(), "{found:?}");
        expected.insert("else".to_owned());
        assert_eq!(all, expected);
        let orders = listed(&client, "order:1").await;
        let expected = [10, 12, 14, 16, 18].map(|number| format!("order:{number}"));
        assert_eq!(orders.into_iter().collect::<BTreeSet<_>>(), expected.into());
        assert_eq!(listed(&client, "{order:7}").await, ["{order:7}:pay"]);
        assert_eq!(listed(&client, "ord*").await, [""; 0]);
    }
}

#[tokio::test]
async fn a_scan_goes_on_over_a_new_connection() {
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let keys: Vec<_> = (0..2000).map(|number| format!("k{number}")).collect();
    let mut fill = redis::cmd("MSET");
    for key in &keys {
        fill.arg(format!("{{lock:{key}}}"))
            .arg("1|30000|s|0123456789abcdef0123456789abcdef");
    }
    let mut redis = server.connection().await;
    let _: () = ask(&mut redis, &fill).await;
    let mut scan = client.scan("k").unwrap();
    let mut found = BTreeSet::new();
    let mut pages = 0;
    while let Some(page) = scan.next_page().await.unwrap() {
        for key in page {
            assert!(found.insert(key.to_string()), "{key} was returned before");
        }
        pages += 1;
        if pages == 2 {
            let kill = redis::cmd("CLIENT")
                .arg("KILL")
                .arg("TYPE")
                .arg("NORMAL")
                .to_owned();
            let _: u64 = ask(&mut redis, &kill).await;
        }
    }
    assert!(pages > 4, "{pages}");
    assert_eq!(found, keys.into_iter().collect());
}

#[tokio::test]
async fn in_process_locks_are_not_listed_and_not_released_by_force() {
    let client = LockClient::connect("memory:").await.unwrap();
    let guard = client.lock("k").acquire().await.unwrap();
    let refused = client.scan("").unwrap().next_page().await;
    assert!(
        matches!(refused, Err(LockError::Refused { .. })),
        "{refused:?}"
    );
    let refused = client.lock("k").waiters(1).await;
    assert!(
        matches!(refused, Err(LockError::Refused { .. })),
        "{refused:?}"
    );
    let refused = client
        .lock("k")
        .force_release(guard.token(), "a test")
        .await;
    assert!(
        matches!(refused, Err(LockError::Refused { .. })),
        "{refused:?}"
    );
    assert_eq!(guard.loss(), None);
}

/// A client whose calls make one attempt gives the server time to answer its questions.
#[tokio::test]
async fn without_a_wait_a_question_has_the_time_of_one_attempt() {
    for wait in [Duration::ZERO, Duration::from_micros(999)] {
        let proxy = FaultProxy::start(shared_server().await.port()).await;
        let store = Store::redis().await.through(&proxy.url());
        proxy.delay(5 * MS);
        let client = store
            .builder()
            .wait(wait)
            .connect_within(support::PATIENCE)
            .await
            .unwrap();
        let guard = hold(&client, "k").await;
        proxy.delay(20 * MS);
        let lock = client.lock("k");
        assert!(lock.status().await.unwrap().holder.is_some());
        assert_eq!(lock.waiters(1).await.unwrap(), []);
        let released = lock.force_release(guard.token(), "a test").await;
        assert_eq!(released, Ok(ForcedRelease::Released));
    }
}

#[tokio::test]
async fn waiters_are_read_in_the_order_of_the_queue() {
    for store in [
        Store::redis().await,
        Store::cluster().await,
        Store::sentinel().await,
    ] {
        eprintln!("on {store:?}");
        let [holder, first, second] = store.clients().await;
        let guard = hold(&holder, "k").await;
        let mut queued = Vec::new();
        for (number, (client, wait)) in [(&first, 20), (&second, 30), (&first, 40)]
            .into_iter()
            .enumerate()
        {
            let acquiring = client.lock("k").wait(wait * SECOND).acquire();
            queued.push(tokio::spawn(acquiring));
            until_waiting(&holder, "k", number + 1).await;
        }
        sleep(30 * MS).await;
        let waiters = holder.lock("k").waiters(10).await.unwrap();
        let left: Vec<_> = waiters
            .iter()
            .map(|waiter| waiter.remaining.as_secs())
            .collect();
        assert_eq!(left, [19, 29, 39]);
        assert!(
            waiters
                .iter()
                .all(|waiter| waiter.queued_for >= 30 * MS && waiter.queued_for < 5 * SECOND)
        );
        assert!(
            waiters.is_sorted_by(|a, b| a.queued_for > b.queued_for),
            "{waiters:?}"
        );
        assert_eq!(waiters[0].session, waiters[2].session);
        assert_ne!(waiters[0].session, waiters[1].session);
        assert_eq!(holder.lock("k").waiters(2).await.unwrap().len(), 2);
        assert_eq!(holder.lock("k").waiters(0).await.unwrap(), []);
        assert_eq!(holder.lock("other").waiters(2).await.unwrap(), []);
        queued.iter().for_each(tokio::task::JoinHandle::abort);
        guard.release().await;
    }
}

#[tokio::test]
async fn the_holder_is_told_of_a_forced_release_and_the_next_has_a_higher_token() {
    log::keep();
    for store in on_servers().await {
        eprintln!("on {store:?}");
        let [holder, operator, next] = store.clients().await;
        let (entered, inside) = tokio::sync::oneshot::channel();
        let lock = holder.lock("k").lease(3 * SECOND).renew(true);
        let body = async move {
            entered.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        let held = tokio::spawn(lock.run(body));
        inside.await.unwrap();
        let waiting = tokio::spawn(next.lock("k").wait(20 * SECOND).acquire());
        if !store.is_redlock() {
            until_waiting(&operator, "k", 1).await;
        }
        let lock = operator.lock("k");
        let token = lock.status().await.unwrap().holder.unwrap().token.unwrap();
        assert_eq!(
            lock.force_release(token, "alice").await.unwrap(),
            ForcedRelease::Released
        );
        // The token names the hold to release, so the next holder keeps the lock.
        assert_eq!(
            lock.force_release(token, "alice").await.unwrap(),
            ForcedRelease::NotHeld
        );
        let records = log::about("token", &token.to_string());
        let told: Vec<_> = records
            .iter()
            .filter(|record| record.message == "lock released by force")
            .collect();
        assert_eq!(told.len(), 1, "{records:?}");
        assert_eq!(
            (told[0].level, told[0].fields["by"].as_str()),
            (Level::WARN, "alice")
        );
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.token() > token, "{} follows {token}", guard.token());
        let lost = timeout(2 * SECOND, held).await.unwrap().unwrap();
        assert_lost(&lost);
        assert!(
            matches!(
                lost,
                Err(LockError::Lost {
                    reason: LossReason::NotHeld,
                    ..
                })
            ),
            "{lost:?}"
        );
        guard.release().await;
    }
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let server = shared_server().await;
    let store = Store::on(&server.url());
    let user = format!("user-{}", Uuid::new_v4());
    let mut redis = server.connection().await;
    let acl = format!("ACL SETUSER {user} on >secret ~* &* +@all -scan");
    let mut command = redis::Cmd::new();
    acl.split(' ').for_each(|word| {
        command.arg(word);
    });
    let _: () = ask(&mut redis, &command).await;
    let url = server
        .url()
        .replace("redis://", &format!("redis://{user}:secret@"));
    let client = store.through(&url).client().await;
    let refused = client.scan("").unwrap().next_page().await.unwrap_err();
    let LockError::Refused { detail, .. } = refused else {
        panic!("{refused:?}");
    };
    assert!(detail.to_string().contains("scan"), "{detail}");
}

/// The rights that `docs/guides/lockctl.md` lists for a viewer of one server.
fn rights_of_a_viewer() -> Vec<String> {
    let guide = std::fs::read_to_string(support::root().join("docs/guides/lockctl.md")).unwrap();
    let line = guide
        .lines()
        .find(|line| line.starts_with("ACL SETUSER viewer"));
    line.unwrap().split(' ').map(str::to_owned).collect()
}

#[tokio::test]
async fn a_viewer_reads_locks_and_changes_none() {
    let server = RedisServer::start().await;
    let mut redis = server.connection().await;
    let words = rights_of_a_viewer();
    let mut user = redis::cmd(&words[0]);
    user.arg(&words[1..]);
    let _: () = ask(&mut redis, &user).await;
    let holder = LockClient::connect(server.url()).await.unwrap();
    let guard = hold(&holder, "k").await;
    let waiting = tokio::spawn(holder.lock("k").wait(60 * SECOND).acquire());
    until_waiting(&holder, "k", 1).await;

    let url = server.url().replace("redis://", "redis://viewer:secret@");
    let builder = || LockClient::builder().url(url.as_str());
    let viewer = builder()
        .access_mode(AccessMode::ReadOnly)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    assert_eq!(listed(&viewer, "").await, ["k"]);
    let lock = viewer.lock("k");
    let status = lock.status().await.unwrap();
    assert_eq!(status.holder.unwrap().token, Some(guard.token()));
    assert_eq!(
        (status.waiters, lock.waiters(9).await.unwrap().len()),
        (1, 1)
    );
    // The client itself refuses the operations, and sends nothing to the server.
    let by_the_client = |error: LockError| {
        let text = lock_core::advice::advised(&error);
        assert!(text.contains("AccessMode::ReadOnly"), "{error:?}");
    };
    by_the_client(viewer.lock("free").acquire().await.unwrap_err());
    let both = viewer.locks(["free", "other"]);
    by_the_client(both.acquire().await.unwrap_err());
    let forced = lock.force_release(guard.token(), "a viewer").await;
    by_the_client(forced.unwrap_err());

    // Without `AccessMode::ReadOnly`, the client needs rights that the user lacks, so connecting fails.
    let denied = builder().connect().await.unwrap_err();
    assert!(
        matches!(denied, ConnectError::Permission { .. }),
        "{denied:?}"
    );
    let mut less = redis::cmd("ACL");
    less.arg(&["SETUSER", "viewer", "-zcard"]);
    let _: () = ask(&mut redis, &less).await;
    let denied = builder()
        .access_mode(AccessMode::ReadOnly)
        .connect()
        .await
        .unwrap_err();
    assert!(denied.to_string().contains("+zcard"), "{denied}");
    assert_eq!(guard.loss(), None);
    waiting.abort();
}
