//! Log records at the default level.

use lock_runtime::{LockClient, LockError, LossReason, OnLost};
use support::{
    log::{self, Record},
    proxy::FaultProxy,
    quorum::Quorum,
    server::RedisServer,
    stores::{MS, SECOND, Store},
    until,
};
use tracing::Level;

fn of_level(level: Level, records: &[Record]) -> Vec<&Record> {
    records
        .iter()
        .filter(|record| record.level == level)
        .collect()
}

/// A client logs one WARN when an outage begins and one INFO with the length of the outage when the outage is over,
/// regardless of the number of calls and sessions. The client logs one WARN for each hold whose renewals are not
/// answered.
#[tokio::test]
async fn an_outage_is_told_once() {
    log::keep();
    for is_killed in [true, false] {
        let mut server = RedisServer::builder().aof_always().start().await;
        let address = format!("127.0.0.1:{}", server.port());
        let client = LockClient::connect(server.url()).await.unwrap();
        let key = format!("outage:{is_killed}");
        let held = client.lock(&key).lease(6 * SECOND).renew(true);
        let held = held.acquire().await.unwrap();
        let waiting = client.clone();
        let waiting = tokio::spawn({
            let lock = waiting.lock(&key).wait(30 * SECOND);
            async move { lock.run(async {}).await }
        });
        support::stores::until_waiting(&client, &key, 1).await;
        assert!(log::about("server", &address).is_empty());

        if is_killed {
            server.kill();
        } else {
            server.stop_process();
        }
        until(async || client.stats().renewal_failed > 0).await;
        let unreachable = client.lock("other").wait(100 * MS).run(async {}).await;
        assert!(
            matches!(unreachable, Err(LockError::Unreachable { .. })),
            "{is_killed} {unreachable:?}"
        );
        let told = log::about("server", &address);
        assert_eq!(of_level(Level::WARN, &told).len(), 1, "{told:?}");
        assert!(told[0].fields.contains_key("error"), "{told:?}");
        assert_eq!(of_level(Level::INFO, &told).len(), 0, "{told:?}");
        let renewals = log::about("key", &key);
        assert_eq!(of_level(Level::WARN, &renewals).len(), 1, "{renewals:?}");
        assert!(
            renewals[0].message.contains("renewal failed"),
            "{renewals:?}"
        );
        for field in ["token", "remaining", "error"] {
            assert!(renewals[0].fields.contains_key(field), "{renewals:?}");
        }

        if is_killed {
            server.restart().await;
        } else {
            server.continue_process();
        }
        until(async || of_level(Level::INFO, &log::about("server", &address)).len() == 1).await;
        held.release().await;
        waiting.await.unwrap().unwrap();
        let told = log::about("server", &address);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].message.contains("again"), "{told:?}");
        assert!(told[1].fields["outage"].ends_with('s'), "{told:?}");
        assert_eq!(log::about("key", &key).len(), 1);
        client.shutdown().await;
    }
}

/// The leases of a client are renewed only while the client lives, and a guard does not keep its client. A client that is
/// dropped before its guard logs one WARN.
#[tokio::test]
async fn a_client_that_is_dropped_before_its_guard_is_warned_about() {
    log::keep();
    let key = "dropped client";
    let guard = {
        let client = Store::redis().await.client().await;
        let lock = client.lock(key).lease(SECOND).renew(true);
        lock.acquire().await.unwrap()
    };
    until(async || !log::about("key", key).is_empty()).await;
    let told = log::about("key", key);
    assert_eq!(of_level(Level::WARN, &told).len(), 1, "{told:?}");
    assert!(told[0].message.contains("no longer renewed"), "{told:?}");
    assert_eq!(guard.lost().await, LossReason::Expired);
}

/// If one node of a Redlock has an outage, the client logs the beginning and the end of the outage once each, although
/// no call fails.
#[tokio::test]
async fn an_outage_of_a_server_of_a_quorum_is_told_once() {
    log::keep();
    let mut quorum = Quorum::start(3).await;
    let client = LockClient::connect(quorum.url()).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    let address = format!("127.0.0.1:{}", quorum.servers[0].port());
    // The first connections to the nodes are not logged.
    let told = log::about("server", &address);
    assert!(told.is_empty(), "{told:?}");
    quorum.servers[0].kill();
    until(async || {
        client.lock("k").run(async {}).await.unwrap();
        !log::about("server", &address).is_empty()
    })
    .await;
    quorum.servers[0].restart().await;
    let of_outage = |part: &str| {
        let told = log::about("server", &address);
        told.iter()
            .filter(|told| told.message.contains(part))
            .count()
    };
    until(async || of_outage("connected again") == 1).await;
    assert_eq!(of_outage("no connection"), 1);
}

/// A client logs nothing about a server that answers, not even when the client is shut down.
#[tokio::test]
async fn nothing_is_told_of_a_server_that_answers() {
    log::keep();
    let server = RedisServer::start().await;
    let address = format!("127.0.0.1:{}", server.port());
    for _ in 0..3 {
        let client = LockClient::connect(server.url()).await.unwrap();
        client.lock("k").run(async {}).await.unwrap();
        client.shutdown().await;
    }
    assert!(log::about("server", &address).is_empty());
}

/// A call with several keys loses one of its locks while it waits for another lock. The client logs no loss, because
/// the call acquires the lost lock again.
#[tokio::test]
async fn a_lock_that_nobody_used_is_not_told_as_lost() {
    log::keep();
    let server = RedisServer::start().await;
    let connect = async || LockClient::connect(server.url()).await.unwrap();
    let (client, other) = (connect().await, connect().await);
    let held = other.lock("unused:b").acquire().await.unwrap();
    let both = client.locks(["unused:a", "unused:b"]).wait(30 * SECOND);
    let both = both.lease(6 * SECOND).renew(true);
    let both = tokio::spawn(async move { both.run(async {}).await });
    support::stores::until_waiting(&other, "unused:b", 1).await;
    server.stop_process();
    until(async || client.stats().renewal_failed > 0).await;
    // This sleep is longer than the lease of the lock that the call already holds.
    tokio::time::sleep(7 * SECOND).await;
    server.continue_process();
    held.release().await;
    both.await.unwrap().unwrap();
    assert_eq!(client.stats().lost, 0);
    let told = log::about("key", "unused:a");
    assert!(told.is_empty(), "{told:?}");
}

/// With `on_lost = continue`, the body goes on after the loss of one lock. The client still warns that the other lock's
/// lease is nearly over.
#[tokio::test]
async fn a_loss_does_not_silence_the_warnings_about_other_locks() {
    log::keep();
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let keys = ["silenced:a", "silenced:b"];
    let locks = client.locks(keys).lease(500 * MS);
    let body = async {
        // The nested call extends the lease of one lock.
        let nested = client.lock(keys[1]).lease(SECOND).run(async {});
        nested.await.unwrap();
        until(async || client.stats().lost == 1).await;
        until(async || client.stats().lost == 2).await;
    };
    locks.on_lost(OnLost::Continue).run(body).await.unwrap();
    let told = log::about("key", keys[1]);
    let warned = told.iter().any(|told| told.message.contains("80 %"));
    assert!(warned, "{told:?}");
}

/// A shutdown ends the clean-ups of dropped calls that cannot reach their server: no task of the client stays until the end
/// of the calls' `wait`.
#[tokio::test]
async fn a_shutdown_ends_clean_ups_without_a_server() {
    log::keep();
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let other = LockClient::connect(server.url()).await.unwrap();
    let held = other.lock("cleaned").lease(100 * SECOND).acquire().await;
    let client = LockClient::connect(proxy.url()).await.unwrap();
    let lock = client.lock("cleaned").wait(3600 * SECOND);
    let queued = tokio::spawn(lock.acquire());
    support::stores::until_waiting(&other, "cleaned", 1).await;
    // The session sends the second call's request in a batch, whose answer does not come.
    proxy.blackhole(true);
    let sent = proxy.wait_for_request(b"EVALSHA");
    let unanswered = tokio::spawn(client.lock("cleaned").wait(3600 * SECOND).acquire());
    sent.await;
    queued.abort();
    unanswered.abort();
    client.shutdown().await;
    drop(client);
    let ended = |record: &Record| record.message.contains("could not be cleaned up");
    until(async || {
        log::about("key", "cleaned")
            .iter()
            .filter(|record| ended(record))
            .count()
            == 2
    })
    .await;
    held.unwrap().release().await;
}

/// The password of the server changes, and the connections are closed. The client logs that the connection is gone, and
/// then that the server refuses it. The text of a call's error says the same. The client logs nothing else until it is
/// connected again.
#[tokio::test]
async fn a_changed_password_is_told_as_a_refusal() {
    log::keep();
    let server = RedisServer::start().await;
    let address = format!("127.0.0.1:{}", server.port());
    let client = LockClient::connect(server.url()).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    let mut admin = server.connection().await;
    let mut send = async |line: &str| {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| _ = command.arg(word));
        let _: redis::Value = command.query_async(&mut admin).await.unwrap();
    };
    send("CONFIG SET requirepass changed").await;
    send("CLIENT KILL TYPE normal SKIPME yes").await;
    send("CLIENT KILL TYPE pubsub").await;
    let warnings = || {
        let told = log::about("server", &address);
        let told = told.into_iter().filter(|told| told.level == Level::WARN);
        told.collect::<Vec<_>>()
    };
    until(async || warnings().len() == 2).await;
    let refused = client.lock("k").wait(300 * MS).run(async {}).await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, LockError::Unreachable { .. }),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("refused"), "{refused:?}");
    let cause = std::error::Error::source(&refused).unwrap().to_string();
    assert!(
        cause.contains("NOAUTH") && cause.contains(&address),
        "{cause}"
    );

    let told = warnings();
    assert!(told[0].message.starts_with("no connection"), "{told:?}");
    assert!(told[1].message.contains("refuses"), "{told:?}");
    assert!(told[1].fields["error"].contains("NOAUTH"), "{told:?}");
    send("CONFIG SET requirepass ").await;
    let again = || log::about("server", &address).len() == 3;
    until(async || again()).await;
    assert_eq!(warnings().len(), 2);
    client.lock("k").run(async {}).await.unwrap();

    // A server that is not ready has answered, too.
    send("REPLICAOF 127.0.0.1 1").await;
    let refused = client.lock("k").wait(300 * MS).run(async {}).await;
    let refused = refused.unwrap_err();
    assert!(refused.to_string().contains("is not ready"), "{refused:?}");
}
