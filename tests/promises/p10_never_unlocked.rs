//! Promise 10: the body never runs without its lock, whatever the options, and even if a key part or the client is
//! missing or the backend fails.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use lock_core::advice::advised;
use lock_runtime::{
    ConnectError, KeyError, Layout, LockClient, LockError, OptionsError, Strategy, distributed_lock,
};
use support::{
    assert_busy, assert_lost,
    cluster::ClusterServers,
    proxy::FaultProxy,
    quorum::Quorum,
    rights::{Deployment, OPTIONAL},
    sentinels::SentinelGroup,
    server::{RedisServer, ask, names_subcommands, shared_server},
};

use crate::stores::{MS, SECOND, Store, on_every_store};

static RUNS: AtomicUsize = AtomicUsize::new(0);

#[distributed_lock(key = "order:<id>", wait = "1s")]
async fn counted(id: &str) -> Result<(), LockError> {
    let _ = id;
    RUNS.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

/// Runs a call that has to fail, and returns its error.
async fn refused(client: Option<&LockClient>, id: &str) -> LockError {
    let before = RUNS.load(Ordering::SeqCst);
    let result = match client {
        Some(client) => client.scope(counted(id)).await,
        None => counted(id).await,
    };
    assert_eq!(
        RUNS.load(Ordering::SeqCst),
        before,
        "the body ran without the lock"
    );
    result.expect_err("the call is refused")
}

// All cases are in a single test, because they share a counter of the runs of one function.
#[tokio::test]
async fn the_body_is_not_run_without_its_lock() {
    assert_eq!(refused(None, "1").await, LockError::NoClient);
    on_every_store(|store| async move {
        let client = store.client().await;
        let empty = refused(Some(&client), "").await;
        assert_eq!(
            empty,
            LockError::InvalidKey(KeyError::EmptyPart { placeholder: "id" })
        );
        let long = refused(Some(&client), &"x".repeat(100_000)).await;
        assert!(
            matches!(long, LockError::InvalidKey(KeyError::TooLong { .. })),
            "{long}"
        );
        let guard = client.lock("order:1").acquire().await.unwrap();
        assert!(matches!(
            refused(Some(&client), "1").await,
            LockError::Busy { .. }
        ));
        guard.release().await;
        client.shutdown().await;
        assert_eq!(refused(Some(&client), "1").await, LockError::ShutDown);
    })
    .await;

    let mut server = RedisServer::start().await;
    let client = Store::on(&server.url()).client().await;
    server.kill();
    let unreachable = refused(Some(&client), "1").await;
    assert!(
        matches!(unreachable, LockError::Unreachable { .. }),
        "{unreachable}"
    );

    // A replica refuses writes, and the error says why.
    let master = RedisServer::start().await;
    let replica = RedisServer::builder().replica_of(&master).start().await;
    let client = Store::on(&replica.url()).client().await;
    let read_only = refused(Some(&client), "1").await;
    assert!(
        advised(&read_only).to_lowercase().contains("read only"),
        "{read_only}"
    );

    // A server without free memory refuses writes that need memory.
    let full = RedisServer::builder().arg("--maxmemory", "1").start().await;
    let client = Store::on(&full.url()).client().await;
    let out_of_memory = refused(Some(&client), "1").await;
    assert!(
        matches!(out_of_memory, LockError::Refused { .. }),
        "{out_of_memory}"
    );
    assert!(advised(&out_of_memory).contains("OOM"), "{out_of_memory}");
}

#[tokio::test]
async fn senseless_options_are_refused() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = || client.lock("k");
        let years = Duration::from_secs(100 * 365 * 24 * 3600);
        for (lock, expected) in [
            (lock().lease(Duration::ZERO), OptionsError::LeaseTooShort),
            (lock().lease(years), OptionsError::LeaseTooLong),
            (lock().wait(years), OptionsError::WaitTooLong),
            (
                lock().lease(500 * MS).renew(true),
                OptionsError::RenewedLeaseTooShort,
            ),
            (
                lock().lease(SECOND).max_hold(SECOND),
                OptionsError::MaxHoldWithoutRenewal,
            ),
        ] {
            let refused = lock
                .run(async { unreachable!("the body is not run") })
                .await;
            assert_eq!(refused, Err::<(), _>(LockError::InvalidOptions(expected)));
        }
    })
    .await;
}

/// A `wait` or a lease that is exactly at one of its limits is allowed. A `wait` or a lease that is a nanosecond
/// outside a limit is refused.
#[tokio::test]
async fn a_wait_and_a_lease_have_limits() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    const BIT: Duration = Duration::from_nanos(1);
    let client = Store::memory().client().await;
    let lock = || client.lock("k");
    for (within, beyond, expected) in [
        (
            lock().lease(10 * MS),
            lock().lease(10 * MS - BIT),
            OptionsError::LeaseTooShort,
        ),
        (
            lock().lease(SECOND).renew(true),
            lock().lease(SECOND - BIT).renew(true),
            OptionsError::RenewedLeaseTooShort,
        ),
        (
            lock().lease(DAY),
            lock().lease(DAY + BIT),
            OptionsError::LeaseTooLong,
        ),
        (
            lock().wait(DAY),
            lock().wait(DAY + BIT),
            OptionsError::WaitTooLong,
        ),
    ] {
        within.run(async {}).await.unwrap();
        let refused = beyond.run(async { unreachable!("the body is not run") });
        let refused: Result<(), _> = refused.await;
        assert_eq!(refused, Err(LockError::InvalidOptions(expected)));
    }
}

async fn refusal(url: &str) -> (ConnectError, Duration) {
    let started = Instant::now();
    let error = LockClient::builder()
        .url(url)
        .wait(SECOND)
        .connect()
        .await
        .expect_err("the server is refused");
    (error, started.elapsed())
}

#[tokio::test]
async fn every_unusable_server_is_a_typed_error_in_time_and_prints_no_password() {
    let closed = support::server::free_port();
    let (error, _) = refusal(&format!("redis://:secret@127.0.0.1:{closed}/")).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");

    let silent = FaultProxy::start(shared_server().await.port()).await;
    silent.blackhole(true);
    let (error, took) = refusal(&silent.url()).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(took < SECOND + support::epsilon(), "{took:?}");

    let locked = RedisServer::builder()
        .arg("--requirepass", "right-one")
        .start()
        .await;
    for url in [
        format!("redis://:secret@127.0.0.1:{}/", locked.port()),
        format!("redis://127.0.0.1:{}/", locked.port()),
    ] {
        let (error, _) = refusal(&url).await;
        assert!(
            matches!(error, ConnectError::Authentication { .. }),
            "{error:?}"
        );
        assert!(
            !format!("{error} {error:?}").contains("secret"),
            "{error:?}"
        );
    }

    let evicting = RedisServer::builder()
        .arg("--maxmemory-policy", "allkeys-lru")
        .start()
        .await;
    let (error, _) = refusal(&evicting.url()).await;
    assert!(
        matches!(&error, ConnectError::Eviction { policy, .. } if policy == "allkeys-lru"),
        "{error}"
    );
    let allowed = LockClient::builder()
        .url(evicting.url())
        .allow_eviction(true)
        .connect()
        .await;
    assert!(allowed.is_ok());

    let web = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = web.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut socket, _)) = web.accept().await {
            let _ = socket.read(&mut [0; 64]).await;
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let (error, _) = refusal(&format!("redis://127.0.0.1:{port}/")).await;
    assert!(matches!(error, ConnectError::NotRedis { .. }), "{error:?}");

    for url in [
        "",
        "localhost",
        "http://localhost",
        "redis://:secret@host:port/",
    ] {
        let (error, _) = refusal(url).await;
        assert!(
            matches!(error, ConnectError::InvalidUrl { .. }),
            "{url}: {error:?}"
        );
        assert!(
            !format!("{error} {error:?}").contains("secret"),
            "{error:?}"
        );
    }
    let missing = LockClient::builder().connect().await.unwrap_err();
    assert_eq!(missing, ConnectError::MissingUrl);
}

/// If a user lacks a right that locks need, the error names that right.
#[tokio::test]
async fn a_missing_right_is_named() {
    let server = RedisServer::start().await;
    let mut admin = server.connection().await;
    for (user, rules) in [
        ("no-channel", "on >pw ~* +@all resetchannels"),
        ("no-script", "on >pw ~* &* +@all -evalsha -eval"),
        ("no-keys", "on >pw ~other:* &* +@all"),
    ] {
        ask::<()>(
            &mut admin,
            redis::cmd("ACL")
                .arg("SETUSER")
                .arg(user)
                .arg(rules.split(' ').collect::<Vec<_>>()),
        )
        .await;
    }
    let url = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}/", server.port());
    for (user, missing) in [
        ("no-channel", "`ACL SETUSER no-channel &lock:session:*`"),
        ("no-script", "`ACL SETUSER no-script +eval +evalsha`"),
        ("no-keys", "`ACL SETUSER no-keys ~{lock:* ~lock:fence`"),
    ] {
        let (error, _) = refusal(&url(user)).await;
        assert!(
            matches!(error, ConnectError::Permission { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains(missing), "{error}");
    }
}

/// Removes each right in turn. The error of `connect` names the missing right. After the test has run the `ACL` command
/// that the error contains, `connect` succeeds.
async fn each_missing_right_is_named(
    servers: &[RedisServer],
    url: &str,
    deployment: Deployment,
    unnoticed: &[&str],
) {
    let builder = || {
        let builder = LockClient::builder().url(url).wait(5 * SECOND);
        match deployment {
            Deployment::Redisson | Deployment::RedissonCluster => builder.layout(Layout::Redisson),
            _ => builder,
        }
    };
    let printed = deployment.entered();
    let set = async |words: &[&str]| {
        for server in servers {
            let mut command = redis::cmd("ACL");
            command.arg("SETUSER").arg("locks").arg(words);
            ask::<()>(&mut server.connection().await, &command).await;
        }
    };
    let rights = printed
        .iter()
        .filter(|word| word.starts_with(['+', '~', '&']))
        .filter(|word| !OPTIONAL.contains(&word.trim_start_matches('+')))
        .filter(|word| !unnoticed.contains(&word.as_str()));
    for right in rights {
        let others = printed.iter().skip(2).filter(|word| *word != right);
        let mut words = vec!["reset"];
        words.extend(others.map(String::as_str));
        set(&words).await;
        let error = builder().connect().await.err();
        // The error of a Redlock contains the errors of its servers.
        let error = error.expect(right).to_string();
        assert!(error.contains("does not permit"), "{right}: {error}");
        let (_, line) = error.split_once("`ACL SETUSER locks ").expect(&error);
        let (line, _) = line.split_once('`').expect(&error);
        let lacks: Vec<_> = line.split(' ').collect();
        // Redis 6.2 does not name the subcommand that it refuses.
        let command = right.split('|').next().filter(|_| !names_subcommands());
        let named = [Some(right.as_str()), command];
        assert!(
            lacks.len() == 1 && named.contains(&Some(lacks[0])),
            "{right}: {error}"
        );
        set(&lacks).await;
        let client = builder().connect().await;
        let client = client.unwrap_or_else(|error| panic!("{right} is granted: {error:?}"));
        client.lock("order:42").run(async {}).await.unwrap();
    }
}

#[tokio::test]
async fn each_missing_right_on_a_server_is_named() {
    let server = [RedisServer::start().await];
    let url = format!("redis://locks:secret@127.0.0.1:{}/", server[0].port());
    each_missing_right_is_named(&server, &url, Deployment::Single, &[]).await;
    // The client cannot check the rights to all keys, because only callers know the names of their locks.
    let unnoticed = ["~order:*", "~redisson_lock_token:*"];
    each_missing_right_is_named(&server, &url, Deployment::Redisson, &unnoticed).await;
}

#[tokio::test]
async fn each_missing_right_on_a_group_is_named() {
    let group = SentinelGroup::start().await;
    let url = group.url().replace("//", "//locks:secret@");
    each_missing_right_is_named(&group.servers, &url, Deployment::Group, &[]).await;
}

#[tokio::test]
async fn each_missing_right_on_a_redlock_is_named() {
    let quorum = Quorum::start(3).await;
    let url = quorum.url().replace("//", "//locks:secret@");
    each_missing_right_is_named(&quorum.servers, &url, Deployment::Redlock, &[]).await;
}

#[tokio::test]
async fn each_missing_right_in_a_cluster_is_named() {
    let cluster = ClusterServers::start(2).await;
    let url = cluster.url().replace("//", "//locks:secret@");
    // The right to the keys `~lock:*` is enough for callers whose keys have hash tags.
    let unnoticed = ["~{lock:*"];
    each_missing_right_is_named(&cluster.servers, &url, Deployment::Cluster, &unnoticed).await;
    // With shard channels, which Redis 7.0 has, the client subscribes to no plain channel of Redisson, so it sends no
    // `UNSUBSCRIBE`. Without the right to `SUNSUBSCRIBE`, the client closes the connection instead.
    let unnoticed = [
        "~order:*",
        "~redisson_lock_token:*",
        "+unsubscribe",
        "+sunsubscribe",
    ];
    let deployment = Deployment::RedissonCluster;
    each_missing_right_is_named(&cluster.servers, &url, deployment, &unnoticed).await;
}

/// Gives the user `locks` the rights that docs/guides/acl.md lists, and the rights in `more`.
async fn limit(server: &RedisServer, deployment: Deployment, more: &[&str]) {
    let mut command = redis::cmd("ACL");
    command.arg(deployment.printed()).arg(more);
    let mut admin = server.connection().await;
    command.exec_async(&mut admin).await.unwrap();
}

/// Returns the log of commands that the server has refused because the user lacked a right.
async fn refusals(server: &RedisServer) -> Vec<redis::Value> {
    let mut log = redis::cmd("ACL");
    log.arg("LOG");
    let mut admin = server.connection().await;
    log.query_async(&mut admin).await.unwrap()
}

/// Uses all operations of locks, with two clients and this strategy. `shutdown` has to return soon, even while a waiter
/// is not polled.
async fn all_that_locks_do(url: &str, strategy: Strategy) {
    let connect = || LockClient::builder().url(url).strategy(strategy).connect();
    let (client, other) = (connect().await.unwrap(), connect().await.unwrap());
    let lock = client.lock("k").lease(SECOND).renew(true).wait(20 * SECOND);
    let guard = lock.acquire().await.unwrap();
    guard.extend(SECOND).await.unwrap();
    let tried = other.lock("k").try_acquire().await;
    assert_busy(&tried);
    let busy = other.lock("k").wait(200 * MS).acquire().await;
    assert_busy(&busy);
    let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..2 {
        for client in [&client, &other] {
            let (lock, entered) = (client.lock("k").wait(20 * SECOND), entered.clone());
            tokio::spawn(async move { lock.run(async move { entered.send(()).unwrap() }).await });
        }
    }
    // The guard's lease is renewed at least once during this sleep.
    tokio::time::sleep(500 * MS).await;
    guard.release().await;
    for _ in 0..4 {
        inside.recv().await.unwrap();
    }
    other
        .lock("kept")
        .hold_at_least(100 * MS)
        .run(async {})
        .await
        .unwrap();
    let fixed = client.lock("fixed").lease(300 * MS);
    let lost = fixed.run(std::future::pending::<()>()).await;
    assert_lost(&lost);
    client.scope(transfer(1, 2)).await.unwrap();
    assert!(client.lock("k").status().await.unwrap().holder.is_none());

    let held = other.lock("k").acquire().await.unwrap();
    let mut forgotten = Box::pin(lock.acquire());
    assert!((&mut forgotten).now_or_never().is_none());
    let dropped = client.lock("k").wait(20 * SECOND).acquire();
    assert!(tokio::time::timeout(100 * MS, dropped).await.is_err());
    let shut = Instant::now();
    client.shutdown().await;
    held.release().await;
    other.shutdown().await;
    assert!(shut.elapsed() < 5 * SECOND, "{:?}", shut.elapsed());
}

#[distributed_lock(keys = ["account:<from>", "account:<to>"])]
async fn transfer(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

/// Connecting to an address without a server fails at once, no matter how long `wait` is.
#[tokio::test]
async fn connecting_fails_at_once_where_no_server_answers() {
    let mut server = RedisServer::start().await;
    server.kill();
    let started = Instant::now();
    let builder = LockClient::builder().url(server.url());
    let refused = builder.wait(20 * SECOND).connect().await;
    assert!(
        matches!(refused, Err(ConnectError::Unreachable { .. })),
        "{refused:?}"
    );
    assert!(started.elapsed() < support::epsilon());

    // A server that is silent gets as much time as a call would wait.
    server.restart().await;
    server.stop_process();
    let started = Instant::now();
    let builder = LockClient::builder().url(server.url());
    let silent = builder.wait(SECOND).connect().await;
    assert!(
        matches!(silent, Err(ConnectError::Unreachable { .. })),
        "{silent:?}"
    );
    let took = started.elapsed();
    assert!(
        took >= SECOND && took < SECOND + support::epsilon(),
        "{took:?}"
    );
    server.continue_process();
}

/// The rights that docs/guides/acl.md lists are enough for all operations, on one server and on a Redlock.
#[tokio::test]
async fn the_rights_in_the_readme_are_enough() {
    for strategy in [Strategy::Handoff, Strategy::Spin] {
        let server = RedisServer::start().await;
        limit(&server, Deployment::Single, &[]).await;
        let url = format!("redis://locks:secret@127.0.0.1:{}/", server.port());
        all_that_locks_do(&url, strategy).await;
        let refused = refusals(&server).await;
        assert!(refused.is_empty(), "{refused:?}");

        let quorum = Quorum::start(3).await;
        for server in &quorum.servers {
            limit(server, Deployment::Redlock, &[]).await;
        }
        let url = quorum
            .url()
            .replace("redlock://", "redlock://locks:secret@");
        all_that_locks_do(&url, strategy).await;
        for server in &quorum.servers {
            let refused = refusals(server).await;
            assert!(refused.is_empty(), "{refused:?}");
        }
    }
}

/// Without the right to read the eviction policy, a client cannot know whether the server evicts keys. Connecting fails
/// with an error that names the missing right.
#[tokio::test]
async fn a_server_that_may_evict_is_refused_without_the_right_to_ask() {
    let server = RedisServer::builder()
        .arg("--maxmemory-policy", "allkeys-lru")
        .start()
        .await;
    limit(&server, Deployment::Single, &["-info"]).await;
    let url = format!("redis://locks:secret@127.0.0.1:{}/", server.port());
    let (error, _) = refusal(&url).await;
    assert!(matches!(error, ConnectError::Permission { .. }), "{error}");
    assert!(error.to_string().contains("'info'"), "{error}");
    let allowed = LockClient::builder().url(&url).allow_eviction(true);
    allowed
        .connect_within(support::PATIENCE)
        .await
        .unwrap()
        .lock("k")
        .run(async {})
        .await
        .unwrap();
}

/// A child process reads `LOCK_URL`, because a change to the environment of this process would affect other tests.
#[test]
fn an_unset_environment_is_an_error_and_never_memory() {
    let check = |value: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "p10_never_unlocked::from_env_child",
                "--ignored",
                "--nocapture",
            ])
            .env_remove("LOCK_URL");
        if let Some(value) = value {
            command.env("LOCK_URL", value);
        }
        let output = command.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(check(None).contains("LOCK_URL is not set"));
    assert!(check(Some("")).contains("LOCK_URL is not set"));
    assert!(check(Some("memory:")).contains("connected"));
}

#[tokio::test]
#[ignore = "the test above runs this test in a child process"]
async fn from_env_child() {
    match LockClient::from_env().await {
        Ok(_) => println!("connected"),
        Err(error) => println!("{error}"),
    }
}

/// Connecting to a Redlock fails if its URL does not name at least three different servers, or if too few servers are
/// usable.
#[tokio::test]
async fn every_unusable_quorum_is_a_typed_error() {
    let mut quorum = Quorum::start(3).await.in_use().await;
    let ports: Vec<_> = quorum.servers.iter().map(RedisServer::port).collect();
    let [a, b, c] = ports[..] else { unreachable!() };
    let (error, _) = refusal(&format!("redlock://127.0.0.1:{a},127.0.0.1:{b}")).await;
    assert_eq!(error, ConnectError::TooFewServers { servers: 2 });
    for url in [
        format!("redlock://127.0.0.1:{a},127.0.0.1:{b},127.0.0.1:{a}"),
        // The list contains one server under two names. The client recognizes the server by the identity that the
        // server reports.
        format!("redlock://127.0.0.1:{a},127.0.0.1:{b},localhost:{a}"),
    ] {
        let (error, _) = refusal(&url).await;
        assert!(
            matches!(error, ConnectError::SameServerTwice { .. }),
            "{error}"
        );
    }

    let evicting = RedisServer::builder()
        .arg("--maxmemory-policy", "allkeys-lru")
        .start()
        .await;
    let locked = RedisServer::builder()
        .arg("--requirepass", "right-one")
        .start()
        .await;
    let (e, l) = (evicting.port(), locked.port());
    let (error, _) = refusal(&format!(
        "redlock://:secret@127.0.0.1:{a},127.0.0.1:{e},127.0.0.1:{l}"
    ))
    .await;
    let ConnectError::NoQuorum {
        needed: 2,
        failures,
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(!failures.is_empty());
    assert!(
        !format!("{error} {error:?}").contains("secret"),
        "{error:?}"
    );

    // A node that evicts keys does not count toward a majority, but the other two nodes are a majority.
    let mixed = LockClient::connect(format!(
        "redlock://127.0.0.1:{a},127.0.0.1:{e},127.0.0.1:{b}"
    ));
    let mixed = mixed.await.unwrap();
    mixed.lock("k").wait(SECOND).run(async {}).await.unwrap();
    assert_eq!(evicting.keys().await, Vec::<String>::new());

    quorum.servers[1].kill();
    let url = format!("redlock://127.0.0.1:{a},127.0.0.1:{b},127.0.0.1:{c}");
    LockClient::connect(&url).await.unwrap();
    quorum.servers[2].kill();
    let (error, took) = refusal(&url).await;
    assert!(
        matches!(
            error,
            ConnectError::NoQuorum {
                reached: 1,
                needed: 2,
                ..
            }
        ),
        "{error}"
    );
    assert!(took < SECOND + support::epsilon(), "{took:?}");
}
