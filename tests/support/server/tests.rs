use std::net::TcpStream;

use super::*;
use crate::until;

async fn set(server: &RedisServer, key: &str) {
    server.ask::<()>(&["SET", key, "1"]).await;
}

#[tokio::test]
async fn a_server_answers_and_is_observed() {
    let server = RedisServer::start().await;
    assert_eq!(server.keys().await, [] as [String; 0]);
    server.reset_stats().await;
    set(&server, "b").await;
    set(&server, "a").await;
    assert_eq!(server.keys().await, ["a", "b"]);
    assert_eq!(server.calls().await["set"], 2);
    server
        .ask::<()>(&["EVAL", "return redis.call('INCR', 'a')", "0"])
        .await;
    assert_eq!(server.scripts().await, 1);
    let calls = server.calls().await;
    assert_eq!((calls["eval"], calls["incr"]), (1, 1));
    server.reset_stats().await;
    assert_eq!(server.calls().await.get("set"), None);
}

#[tokio::test]
async fn clients_are_counted() {
    let server = RedisServer::start().await;
    until(async || server.client_count().await == 0).await;
    let connections = [server.connection().await, server.connection().await];
    until(async || server.client_count().await == 2).await;
    drop(connections);
    until(async || server.client_count().await == 0).await;
}

#[tokio::test]
async fn a_killed_server_is_gone_and_comes_back_empty_on_its_port() {
    let mut server = RedisServer::start().await;
    let (port, pid) = (server.port(), server.pid());
    set(&server, "k").await;
    server.kill();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    server.restart().await;
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.keys().await, [] as [String; 0]);
}

#[tokio::test]
async fn with_aof_always_nothing_is_lost() {
    let mut server = RedisServer::builder().aof_always().start().await;
    for key in ["a", "b", "c"] {
        set(&server, key).await;
        server.kill();
        server.restart().await;
    }
    assert_eq!(server.keys().await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_stopped_server_answers_after_it_went_on() {
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    server.stop_process();
    let ping = redis::cmd("PING");
    let mut answer = std::pin::pin!(ping.query_async::<String>(&mut connection));
    let early = backstage::within(Duration::from_millis(100), answer.as_mut()).await;
    assert!(early.is_none(), "{early:?}");
    server.continue_process();
    assert_eq!(answer.await.unwrap(), "PONG");
}

/// Dropping the server kills the server's process even if that process is stopped.
#[tokio::test]
async fn a_dropped_server_leaves_neither_process_nor_folder() {
    let server = RedisServer::start().await;
    let (port, folder) = (server.port(), server.folder.clone());
    assert!(folder.is_dir());
    server.stop_process();
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!folder.exists());
}

#[tokio::test]
async fn settings_are_passed_on() {
    let server = RedisServer::builder()
        .arg("--maxmemory-policy", "allkeys-lru")
        .arg("--requirepass", "secret")
        .start()
        .await;
    let policy: Vec<String> = server.ask(&["CONFIG", "GET", "maxmemory-policy"]).await;
    assert_eq!(policy, ["maxmemory-policy", "allkeys-lru"]);
    let stranger = Client::open(server.url()).unwrap();
    let mut connection = stranger.get_connection().unwrap();
    let refused = redis::cmd("PING").exec(&mut connection).unwrap_err();
    assert_eq!(refused.code(), Some("NOAUTH"));
}

#[tokio::test]
async fn every_url_leads_to_the_same_server() {
    let server = RedisServer::start().await;
    set(&server, "here").await;
    for (url, resp) in [
        (server.url(), "resp=2"),
        (server.url_resp3(), "resp=3"),
        (server.unix_url(), "resp=2"),
    ] {
        let mut connection = Client::open(url.as_str())
            .unwrap()
            .get_connection()
            .unwrap();
        let info: String = redis::cmd("CLIENT")
            .arg("INFO")
            .query(&mut connection)
            .unwrap();
        assert!(info.contains(resp), "{url}: {info}");
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        assert_eq!(keys, ["here"], "{url}");
    }
}

#[tokio::test]
async fn a_replica_follows() {
    let master = RedisServer::start().await;
    let replica = RedisServer::builder().replica_of(&master).start().await;
    set(&master, "k").await;
    until(async || replica.keys().await == ["k"]).await;
}

/// The server takes real time to start although the test's clock stands still.
#[tokio::test(start_paused = true)]
async fn a_paused_clock_changes_nothing() {
    let before = tokio::time::Instant::now();
    let mut server = RedisServer::start().await;
    server.restart().await;
    set(&server, "k").await;
    assert_eq!(server.keys().await, ["k"]);
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test]
#[should_panic(expected = "Bad directive")]
async fn a_wrong_setting_is_named() {
    RedisServer::builder()
        .arg("--no-such-setting", "1")
        .start()
        .await;
}

#[tokio::test]
async fn the_shared_server_is_one() {
    let (first, second) = tokio::join!(shared_server(), shared_server());
    assert_eq!(first.pid(), second.pid());
}

#[tokio::test]
async fn a_stranger_on_the_port_is_not_taken_for_the_server() {
    let stranger = RedisServer::start().await;
    let mut server = RedisServer::start().await;
    server.kill();
    server.port = stranger.port();
    server.spawn();
    assert!(!server.answers().await);
}
