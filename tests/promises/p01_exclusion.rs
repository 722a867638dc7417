//! Promise 1: two holds of one key never overlap, and tokens rise in the order of grants, even if the server loses its
//! data.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use lock_runtime::LockClient;
use support::{
    PATIENCE,
    server::{RedisServer, ask},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};

use crate::stores::{MS, SECOND, Store, hold, on_every_store};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_holds_overlap_and_tokens_rise() {
    on_every_store(|store| async move {
        let inside = Arc::new(AtomicUsize::new(0));
        let newest = Arc::new(AtomicU64::new(0));
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let client = store.client().await;
            for _ in 0..8 {
                let (client, inside, newest) = (client.clone(), inside.clone(), newest.clone());
                callers.spawn(async move {
                    for _ in 0..25 {
                        let guard = client.lock("k").wait(PATIENCE).acquire().await.unwrap();
                        assert_eq!(
                            inside.fetch_add(1, Ordering::SeqCst),
                            0,
                            "two holds overlap"
                        );
                        let token = guard.token().get();
                        let before = newest.swap(token, Ordering::SeqCst);
                        assert!(before < token, "token {token} after {before}");
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.release().await;
                    }
                });
            }
        }
        callers.join_all().await;
    })
    .await;
}

#[tokio::test]
async fn a_counter_read_and_written_under_the_lock_loses_no_update() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let stock = Arc::new(Mutex::new(0));
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (client, stock) = (client.clone(), stock.clone());
            callers.spawn(async move {
                let body = async {
                    let read = *stock.lock().unwrap();
                    tokio::task::yield_now().await;
                    *stock.lock().unwrap() = read + 1;
                };
                client.lock("k").wait(PATIENCE).run(body).await.unwrap();
            });
        }
        callers.join_all().await;
        assert_eq!(*stock.lock().unwrap(), 50);
    })
    .await;
}

async fn token(client: &LockClient) -> u64 {
    let guard = client.lock("k").wait(5 * SECOND).acquire().await.unwrap();
    let token = guard.token().get();
    guard.release().await;
    token
}

/// Tokens rise even if the server loses all its data and the client continues on its old connection.
#[tokio::test]
async fn tokens_rise_over_flushall_on_an_old_connection() {
    let server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    let mut newest = token(&client).await;
    for _ in 0..5 {
        for _ in 0..10 {
            let next = token(&client).await;
            assert!(next > newest);
            newest = next;
        }
        let flushed = redis::cmd("FLUSHALL")
            .exec_async(&mut server.connection().await)
            .await;
        flushed.unwrap();
        let next = token(&client).await;
        assert!(
            next > newest,
            "token {next} after FLUSHALL, {newest} before"
        );
        newest = next;
    }
}

/// Tokens rise even if a replica that lacks the newest grants replaces the master.
#[tokio::test]
async fn tokens_rise_over_the_promotion_of_a_lagging_replica() {
    let master = RedisServer::start().await;
    let first = Store::on(&master.url()).client().await;
    token(&first).await;
    let replica = RedisServer::builder().replica_of(&master).start().await;
    let mut on_replica = replica.connection().await;
    crate::stores::until(async || {
        let info: String = ask(&mut on_replica, redis::cmd("INFO").arg("replication")).await;
        info.contains("master_link_status:up")
    })
    .await;
    // The replica is promoted before the master grants the lock again, so it receives none of the master's later
    // grants.
    ask::<()>(
        &mut on_replica,
        redis::cmd("REPLICAOF").arg("NO").arg("ONE"),
    )
    .await;
    let mut newest = 0;
    for _ in 0..100 {
        newest = token(&first).await;
    }
    let second = Store::on(&replica.url()).client().await;
    let next = token(&second).await;
    assert!(
        next > newest,
        "token {next} on the promoted replica, {newest} before"
    );
}

/// If a holder notices its loss late, a resource can refuse that holder's writes, because the next holder's token is
/// higher.
#[tokio::test]
async fn whoever_follows_an_expired_hold_has_a_higher_token() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let slow = client.lock("k").lease(300 * MS).acquire().await.unwrap();
        slow.lost().await;
        let next = client.lock("k").wait(20 * SECOND).acquire().await.unwrap();
        assert!(next.token() > slow.token());
        slow.release().await;
        // The late release has not released the next holder's lock.
        assert!(client.lock("k").try_acquire().await.is_err());
        next.release().await;
        hold(&client, "k").await.release().await;
    })
    .await;
}

/// Passes all bytes between clients and the server on `port`. Adds a reply whenever `adds` is set.
async fn between(listener: TcpListener, port: u16, adds: Arc<AtomicBool>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
        let adds = adds.clone();
        tokio::spawn(async move {
            let mut bytes = vec![0; 16 * 1024];
            while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                let extra: &[u8] = match adds.swap(false, Ordering::SeqCst) {
                    true => b":1\r\n",
                    false => b"",
                };
                let passed = [extra, &bytes[..length]].concat();
                to_client.write_all(&passed).await.unwrap();
            }
        });
    }
}

/// If the replies are shifted by one, the reply to a release reaches an acquisition. It grants no lock, and the connection is
/// given up.
#[tokio::test]
async fn the_reply_to_a_release_is_no_grant() {
    let server = RedisServer::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let adds = Arc::new(AtomicBool::new(false));
    tokio::spawn(between(listener, server.port(), adds.clone()));
    let client = Store::on(&url).client().await;
    let before = token(&client).await;
    adds.store(true, Ordering::SeqCst);
    let after = token(&client).await;
    assert!(!adds.load(Ordering::SeqCst));
    assert!(after > before, "token {after} after {before}");
}
