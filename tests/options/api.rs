//! The public API without the attribute: ways to create and find a client, the explicit API, the blocking API, and log
//! records.

use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockClient, LockError, Pem, ReleaseOutcome, distributed_lock};
use support::{
    assert_busy, assert_lost, log,
    server::{RedisServer, ask, shared_server},
    until,
};
use tokio::time::sleep;
use uuid::Uuid;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn key() -> String {
    Uuid::new_v4().to_string()
}

async fn redis() -> LockClient {
    let url = shared_server().await.url();
    LockClient::connect(url).await.unwrap()
}

async fn works(client: &LockClient) {
    let key = key();
    let guard = client.lock(&key).acquire().await.unwrap();
    assert_busy(&client.lock(&key).try_acquire().await);
    guard.release().await;
    client.lock(&key).run(async {}).await.unwrap();
}

#[tokio::test]
async fn a_unix_socket_works() {
    let url = shared_server().await.unix_url();
    works(&LockClient::connect(url).await.unwrap()).await;
}

#[tokio::test]
async fn tls_works_and_a_mismatch_is_told() {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = signed.cert.pem();
    let server = RedisServer::builder()
        .tls(&certificate, &signed.signing_key.serialize_pem())
        .start()
        .await;
    let url = format!("rediss://localhost:{}/", server.tls_port());
    // This machine does not trust the authority that has issued the server's certificate.
    let refused = LockClient::connect(&url).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Tls { .. }), "{refused}");
    assert!(
        refused.to_string().to_lowercase().contains("certificate"),
        "{refused}"
    );
    // This URL requires TLS, but the server's port does not use TLS.
    let plain = format!("rediss://:secret@localhost:{}/", server.port());
    let refused = LockClient::connect(plain).await.unwrap_err();
    assert!(matches!(refused, ConnectError::NoTls { .. }), "{refused}");
    assert!(!format!("{refused} {refused:?}").contains("secret"));
    let trusting = LockClient::builder()
        .url(url)
        .tls_root_certificates(Pem::text(certificate));
    works(&trusting.connect().await.unwrap()).await;
}

/// A client can be used in a new runtime after the runtime in which it was created has ended. Tests that share a client
/// rely on this, because each `#[tokio::test]` has its own runtime.
#[test]
fn a_client_outlives_the_runtime_that_made_it() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let client = runtime().block_on(redis());
    for _ in 0..3 {
        runtime().block_on(works(&client));
    }
    let guard = client.lock(key()).blocking_acquire().unwrap();
    guard.blocking_release();
}

/// A runtime has already ended, and its handle drives calls with `block_on`. These calls succeed, and so do later calls
/// on a new runtime.
#[test]
fn a_runtime_that_has_ended_does_not_stop_a_client() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let client = runtime().block_on(redis());
    let ended = runtime();
    let handle = ended.handle().clone();
    drop(ended);
    handle.block_on(works(&client));
    runtime().block_on(works(&client));
}

/// Dropping a client closes all its connections.
#[tokio::test]
async fn a_dropped_client_closes_its_connections() {
    let server = RedisServer::start().await;
    let mut observer = server.connection().await;
    let mut connections = async || {
        let clients: String = ask(&mut observer, redis::cmd("CLIENT").arg("LIST")).await;
        clients.lines().count()
    };
    let before = connections().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    works(&client).await;
    assert!(connections().await > before);
    drop(client);
    support::until(async || connections().await == before).await;
}

/// A client has one connection, whatever runtimes its callers run on. A shutdown closes the connection.
#[test]
fn a_client_has_one_connection_for_all_runtimes() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let tests = runtime();
    let server = tests.block_on(RedisServer::start());
    let client = tests.block_on(LockClient::connect(server.url())).unwrap();
    let until_connected = |connections: usize| {
        let connected = until(async || server.client_count().await == connections);
        tests.block_on(connected);
    };
    until_connected(1);
    let users = [runtime(), runtime(), runtime()];
    for user in &users {
        user.block_on(works(&client));
        until_connected(1);
    }
    tests.block_on(client.shutdown());
    until_connected(0);
}

#[test]
fn the_blocking_form_works_outside_async() {
    let server_url = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { shared_server().await.url() });
    for url in ["memory:", &server_url] {
        let client = LockClient::blocking_connect(url).unwrap();
        let lock = client.lock(key()).wait(100 * MS);
        let guard = lock.blocking_acquire().unwrap();
        assert_busy(&lock.blocking_try_acquire());
        assert_busy(&lock.blocking_acquire());
        guard.blocking_release();
        lock.blocking_try_acquire().unwrap().blocking_release();

        let locks = client.locks([key(), key()]).wait(100 * MS);
        let guard = locks.blocking_acquire().unwrap();
        assert_busy(&locks.blocking_try_acquire());
        assert_eq!(guard.blocking_release(), [ReleaseOutcome::Released; 2]);
    }
}

/// The caller's runtime has neither an I/O driver nor a timer. For its sockets and timers, the engine uses its own
/// runtime.
#[test]
fn a_runtime_without_drivers_works() {
    let url = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { shared_server().await.url() });
    let client = LockClient::blocking_connect(url).unwrap();
    let bare = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    bare.block_on(works(&client));
    bare.block_on(async {
        let lost = client
            .lock(key())
            .lease(300 * MS)
            .run(std::future::pending::<()>())
            .await;
        assert_lost(&lost);
    });
}

#[tokio::test]
async fn a_guard_tells_and_extends() {
    for client in [LockClient::connect("memory:").await.unwrap(), redis().await] {
        let lock = client.lock(key()).lease(SECOND);
        let guard = lock.acquire().await.unwrap();
        assert!(guard.token().get() > 0);
        assert!(guard.remaining() > 900 * MS && guard.remaining() <= SECOND);
        let left = guard.extend(2 * SECOND).await.unwrap();
        assert!(left > 2800 * MS && left <= 3 * SECOND, "{left:?}");
        assert!(matches!(
            guard.extend(100 * 3600 * SECOND).await,
            Err(LockError::InvalidOptions(_))
        ));
        let status = lock.status().await.unwrap();
        let holder = status.holder.unwrap();
        assert_eq!((holder.token, status.waiters), (Some(guard.token()), 0));
        assert!(holder.remaining.unwrap() > 2500 * MS);
        assert_eq!(guard.run(async { 7 }).await, Ok(7));
        guard.release().await;
        assert_eq!(lock.status().await.unwrap().holder, None);
        let short = lock.clone().lease(300 * MS).acquire().await.unwrap();
        short.lost().await;
        assert_lost(&short.extend(SECOND).await);
    }
}

/// A blocking body occupies the caller's only runtime thread for three times the length of the lease. Meanwhile the
/// engine's own thread renews the lease.
#[test]
fn a_blocked_runtime_does_not_stop_its_renewals() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = runtime.block_on(redis());
    runtime.block_on(async {
        let blocking = || async { std::thread::sleep(3 * SECOND) };
        client
            .lock(key())
            .lease(SECOND)
            .renew(true)
            .run(blocking())
            .await
            .unwrap();
    });
    assert_eq!(client.stats().lost, 0);
    assert!(client.stats().renewed >= 6, "{:?}", client.stats());
}

/// A lock whose renewals fail does not affect other locks.
#[tokio::test]
async fn one_locks_failure_touches_no_other() {
    let client = redis().await;
    let (broken, sound) = (key(), key());
    let observer = shared_server().await;
    let lost = client.lock(&broken).lease(SECOND).renew(true).run(async {
        let mut connection = observer.connection().await;
        let name = format!("{{lock:{broken}}}");
        ask::<()>(&mut connection, redis::cmd("DEL").arg(&name)).await;
        ask::<()>(
            &mut connection,
            redis::cmd("LPUSH").arg(&name).arg("not a lock"),
        )
        .await;
        sleep(2 * SECOND).await;
    });
    let kept = client
        .lock(&sound)
        .lease(SECOND)
        .renew(true)
        .run(sleep(2 * SECOND));
    let (lost, kept) = tokio::join!(lost, kept);
    assert_lost(&lost);
    assert_eq!(kept, Ok(()));
}

#[distributed_lock(key = "hour", wait = "30m", lease = "1h")]
async fn an_hour(work: Duration) -> Result<(), LockError> {
    sleep(work).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn under_a_paused_clock_nothing_is_waited_for() {
    let started = Instant::now();
    let client = LockClient::connect("memory:").await.unwrap();
    client
        .scope(async {
            let (first, second) = tokio::join!(an_hour(1200 * SECOND), an_hour(SECOND));
            assert_eq!((first, second), (Ok(()), Ok(())));
            let (first, second) = tokio::join!(an_hour(2400 * SECOND), an_hour(SECOND));
            assert_eq!(first, Ok(()));
            assert_busy(&second);
            assert_lost(&an_hour(7200 * SECOND).await);
        })
        .await;
    assert!(started.elapsed() < 5 * SECOND);
}

/// If the tokio clock is paused, it jumps ahead while the body awaits real I/O, so the lease ends. A running clock does
/// not jump.
#[test]
fn a_lease_lasts_over_real_io_where_the_clock_runs() {
    let wait_for_a_thread = |paused: bool| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(paused).build().unwrap();
        runtime.block_on(async {
            let client = LockClient::connect("memory:").await.unwrap();
            let (end, mut far_end) = std::os::unix::net::UnixStream::pair().unwrap();
            end.set_nonblocking(true).unwrap();
            let end = tokio::net::UnixStream::from_std(end).unwrap();
            let answers = std::thread::spawn(move || {
                std::thread::sleep(50 * MS);
                std::io::Write::write_all(&mut far_end, b"!").unwrap();
            });
            let lock = client.lock("k").lease(60 * SECOND);
            let read = lock.run(async { end.readable().await.unwrap() }).await;
            answers.join().unwrap();
            read
        })
    };
    wait_for_a_thread(false).unwrap();
    let paused = wait_for_a_thread(true);
    assert_lost(&paused);
}

#[test]
fn a_client_is_installed_once_and_a_scoped_one_comes_first() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let installed = LockClient::connect("memory:").await.unwrap();
        installed.install().unwrap();
        assert!(installed.install().is_err());
        let scoped = LockClient::connect("memory:").await.unwrap();
        let held = scoped.lock("hour").acquire().await.unwrap();
        an_hour(Duration::ZERO).await.unwrap();
        assert_eq!(installed.stats().acquired, 1);
        assert!(
            scoped
                .scope(async {
                    LockClient::current()
                        .unwrap()
                        .lock("hour")
                        .try_acquire()
                        .await
                })
                .await
                .is_err()
        );
        held.release().await;
        scoped.scope(an_hour(Duration::ZERO)).await.unwrap();
        assert_eq!(
            (installed.stats().acquired, scoped.stats().acquired),
            (1, 2)
        );
    });
}

#[tokio::test]
async fn a_body_that_has_used_most_of_its_fixed_lease_is_warned_about() {
    log::keep();
    for client in [LockClient::connect("memory:").await.unwrap(), redis().await] {
        let key = key();
        let lock = client.lock(&key).lease(4 * SECOND);
        let told = || log::about("key", &key);
        lock.run(sleep(100 * MS)).await.unwrap();
        assert!(told().is_empty(), "{:?}", told());

        let began = Instant::now();
        let warned = until(async || !told().is_empty());
        lock.run(warned).await.unwrap();
        assert!(began.elapsed() >= 3190 * MS, "{:?}", began.elapsed());
        let told = told();
        assert!(
            told.len() == 1 && told[0].message.contains("80 %"),
            "{told:?}"
        );
    }
}
