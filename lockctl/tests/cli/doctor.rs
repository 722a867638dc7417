//! Tests of the subcommand `doctor`, on a server that is set up well for locks, and on servers that are not.

use std::time::Duration;

use redis::cmd;
use serde_json::Value;
use support::{
    cluster::shared_cluster,
    sentinels::shared_group,
    server::{RedisServer, ServerBuilder, ask},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::tool::output;

/// Returns the settings of a server with which `doctor` finds no fault.
fn good() -> ServerBuilder {
    RedisServer::builder().aof_always()
}

/// Runs `doctor` on a server that is not set up well. Panics unless one finding has the name `check` and contains the
/// texts `found` and `cure`.
#[track_caller]
fn finds(url: &str, check: &str, found: &str, cure: &str) {
    let report = output(url, &["doctor", "-o", "json"]).with_code(1).json();
    let findings: Vec<_> = findings(&report);
    let fits = |finding: &&&Value| {
        let text = |name: &str| finding[name].as_str().unwrap_or_default();
        text("check") == check && text("found").contains(found) && text("cure").contains(cure)
    };
    assert!(
        findings.iter().any(|finding| fits(&finding)),
        "no finding {check}, {found}, {cure}: {findings:#?}"
    );
    let text = output(url, &["doctor"]).with_code(1).stdout;
    assert!(text.contains(found) && text.contains(cure), "{text}");
}

fn findings(report: &Value) -> Vec<&Value> {
    let checks = report.as_array().unwrap();
    checks.iter().filter(|check| check["ok"] == false).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_server_has_no_finding() {
    let server = good().start().await;
    let report = output(&server.url(), &["doctor", "-o", "json"])
        .with_code(0)
        .json();
    assert_eq!(findings(&report), [&Value::Null; 0], "{report:#}");
    let checks: Vec<_> = report
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["check"].as_str().unwrap())
        .collect();
    let all = [
        "connect",
        "lock",
        "version",
        "role",
        "persistence",
        "memory",
        "eviction",
        "clock",
        "latency",
        "queues",
    ];
    assert_eq!(checks, all);
    let text = output(&server.url(), &["doctor"]).with_code(0).stdout;
    assert!(text.ends_with("no finding\n"), "{text}");
    assert!(server.keys().await.iter().all(|key| key == "lock:fence"));
}

#[tokio::test(flavor = "multi_thread")]
async fn eviction_is_found() {
    let server = good()
        .arg("--maxmemory-policy", "allkeys-lru")
        .start()
        .await;
    finds(
        &server.url(),
        "eviction",
        "allkeys-lru",
        "set maxmemory-policy to noeviction",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_persistence_is_found() {
    let server = RedisServer::start().await;
    finds(
        &server.url(),
        "persistence",
        "a crash loses the newest locks",
        "appendonly yes",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_clock_is_found() {
    let server = good().clock_ahead(0).start().await;
    server.set_clock(-90);
    finds(&server.url(), "clock", "behind this machine's", "NTP");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_found() {
    let server = good().start().await;
    let mut redis = server.connection().await;
    let mut user = cmd("ACL");
    user.arg(&[
        "SETUSER", "few", "on", ">secret", "~*", "&*", "+@all", "-zpopmin",
    ]);
    let _: () = ask(&mut redis, &user).await;
    let url = server.url().replace("redis://", "redis://few:secret@");
    finds(&url, "rights", "+zpopmin", "docs/guides/acl.md");
    let text = output(&url, &["doctor"]).with_code(1).stdout;
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_node_by_a_plain_url_is_found() {
    let url = shared_cluster().await.url();
    let node = url
        .trim_start_matches("redis+cluster://")
        .split(',')
        .next()
        .unwrap();
    finds(
        &format!("redis://{}/", node.trim_end_matches('/')),
        "cluster",
        "node of a Redis Cluster",
        "write redis+cluster://",
    );
}

/// Forwards the bytes between a client and a server, and replaces one text in these bytes by another text of the same
/// length.
async fn replacing(
    server: &RedisServer,
    asked: [&'static str; 2],
    answered: [&'static str; 2],
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = server.port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(pass(from_client, to_server, asked));
            tokio::spawn(pass(from_server, to_client, answered));
        }
    });
    format!("redis://{address}/")
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    [old, new]: [&str; 2],
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        let bytes = &mut bytes[..length];
        let places: Vec<_> = (0..length)
            .filter(|place| bytes[*place..].starts_with(old.as_bytes()))
            .collect();
        for place in places {
            bytes[place..place + new.len()].copy_from_slice(new.as_bytes());
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

const UNCHANGED: [&str; 2] = ["no such text", "no such text"];

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_speaks_only_resp2_is_found() {
    let server = good().start().await;
    let url = replacing(&server, ["HELLO", "HULLO"], ["HULLO", "HELLO"]).await;
    finds(&url, "resp3", "RESP3", "proxy that supports RESP3");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_version_is_found() {
    let server = good().start().await;
    let version = server_version(&server).await;
    let old = format!("redis_version:5{}", &version[1..]).leak();
    let new = format!("redis_version:{version}").leak();
    let url = replacing(&server, UNCHANGED, [new, old]).await;
    finds(
        &url,
        "version",
        "locks need 6.2 or later",
        "install Redis 6.2 or later",
    );
}

async fn server_version(server: &RedisServer) -> String {
    let mut redis = server.connection().await;
    let info: String = ask(&mut redis, cmd("INFO").arg("server")).await;
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    version.unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_memory_is_found() {
    let server = good().start().await;
    let mut redis = server.connection().await;
    let info: String = ask(&mut redis, cmd("INFO").arg("memory")).await;
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .unwrap();
    let most = used.trim().parse::<u64>().unwrap() * 21 / 20;
    let _: () = ask(
        &mut redis,
        cmd("CONFIG").arg(&["SET", "maxmemory", &most.to_string()]),
    )
    .await;
    finds(&server.url(), "memory", "are in use", "raise maxmemory");
}

/// The entries have the form of a real queue: a waiter with the words that tell people where it runs, and an entry that
/// is not a waiter.
#[tokio::test(flavor = "multi_thread")]
async fn left_over_queues_are_found() {
    let server = good().start().await;
    let mut redis = server.connection().await;
    let waiter = "0123456789abcdef0123456789abcdef|session|30000|1000|shop/web-3/9163/shop::pay";
    let other = "notify|session";
    let (past, future) = ("1000000", "9000000000000000");
    for (key, expires, entries) in [
        ("over", true, &[(past, waiter), ("+inf", other)][..]),
        ("stays", false, &[(future, waiter)]),
        ("fine", true, &[(future, waiter), ("+inf", other)]),
        ("skipped", true, &[("+inf", other)]),
    ] {
        let queue = format!("{{lock:{key}}}:queue");
        for (place, entry) in entries {
            let added: u8 = ask(&mut redis, cmd("ZADD").arg(&[&queue, *place, *entry])).await;
            assert_eq!(added, 1);
        }
        if expires {
            let _: u8 = ask(&mut redis, cmd("PEXPIRE").arg(&[&queue, "600000"])).await;
        }
    }
    for key in ["over", "stays"] {
        let queue = format!("{{lock:{key}}}:queue");
        finds(&server.url(), "queues", &queue, "redis-cli DEL");
    }
    let text = output(&server.url(), &["doctor"]).with_code(1).stdout;
    assert!(
        !text.contains("fine") && !text.contains("skipped"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_found() {
    let primary = good().start().await;
    let replica = good().replica_of(&primary).start().await;
    let port = primary.port().to_string();
    finds(&replica.url(), "role", "is a replica", &port);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_server_of_a_topology_is_examined() {
    let cluster = shared_cluster().await.url();
    let [a, b, c] = [
        RedisServer::start().await,
        RedisServer::start().await,
        RedisServer::start().await,
    ];
    let redlock = format!(
        "redlock://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}",
        a.port(),
        b.port(),
        c.port()
    );
    for (url, servers) in [(cluster, 3), (shared_group().await.url(), 1), (redlock, 3)] {
        let report = output(&url, &["doctor", "-o", "json"]).json();
        let checks = report.as_array().unwrap();
        let examined = checks
            .iter()
            .filter(|check| check["check"] == "version")
            .count();
        assert_eq!(examined, servers, "{url}: {report:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_a_finding() {
    let server = RedisServer::start().await;
    server.stop_process();
    let began = std::time::Instant::now();
    let ran = output(&server.url(), &["--patience", "300ms", "doctor"]).with_code(1);
    assert!(ran.stdout.contains("check the address"), "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
    server.continue_process();
}
