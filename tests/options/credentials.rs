//! The provider of credentials: passwords that change, tokens that expire, and providers that fail.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lock_runtime::{ConnectError, Credentials, LockClient, LockClientBuilder};
use redis::aio::MultiplexedConnection;
use support::{
    server::{RedisServer, ask},
    until,
};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A server with a user `locks`, and an administrator's connection to it.
struct Guarded {
    server: RedisServer,
    admin: MultiplexedConnection,
}

impl Guarded {
    async fn start(password: &str) -> Self {
        let server = RedisServer::start().await;
        let mut guarded = Self {
            admin: server.connection().await,
            server,
        };
        guarded
            .acl(&["SETUSER", "locks", "on", "~*", "&*", "+@all"])
            .await;
        guarded.change_password(password).await;
        guarded
    }

    async fn acl(&mut self, words: &[&str]) {
        ask::<()>(&mut self.admin, redis::cmd("ACL").arg(words)).await;
    }

    async fn change_password(&mut self, password: &str) {
        let set = format!(">{password}");
        self.acl(&["SETUSER", "locks", "resetpass", &set]).await;
    }

    /// Closes the connections of the user, as a service does when a token has expired.
    async fn close_connections(&mut self) {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("USER").arg("locks");
        let closed: usize = ask(&mut self.admin, &kill).await;
        assert!(closed > 0);
    }

    /// Returns how often connections have logged in with `AUTH`.
    async fn logins(&self) -> u64 {
        self.server
            .calls()
            .await
            .get("auth")
            .copied()
            .unwrap_or_default()
    }

    fn builder(&self) -> LockClientBuilder {
        LockClient::builder().url(self.server.url())
    }
}

/// A provider that returns the newest password, and counts its calls.
#[derive(Clone, Default)]
struct Passwords {
    newest: Arc<Mutex<String>>,
    calls: Arc<AtomicUsize>,
}

impl Passwords {
    fn new(first: &str) -> Self {
        let passwords = Self::default();
        passwords.set(first);
        passwords
    }

    fn set(&self, password: &str) {
        password.clone_into(&mut self.newest.lock().unwrap());
    }

    fn next(&self) -> Credentials {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Credentials::new("locks", self.newest.lock().unwrap().clone())
    }
}

/// The password changes under load, and the server closes the connections. The client logs in with the new password, and
/// no call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_changes_under_load_fails_no_call() {
    let mut guarded = Guarded::start("first").await;
    let passwords = Passwords::new("first");
    let provider = passwords.clone();
    let builder = guarded.builder().credentials_provider(move || {
        let credentials = provider.next();
        async move { Ok::<_, String>(credentials) }
    });
    let client = builder.connect_within(support::PATIENCE).await.unwrap();
    let (ended, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let calls: Vec<_> = (0..8)
        .map(|number| {
            let (client, ended, done) = (client.clone(), ended.clone(), done.clone());
            tokio::spawn(async move {
                while !ended.load(Ordering::Acquire) {
                    let lock = client.lock(format!("k{}", number % 2)).wait(20 * SECOND);
                    lock.run(async {}).await.unwrap();
                    done.fetch_add(1, Ordering::AcqRel);
                }
            })
        })
        .collect();
    for password in ["second", "third"] {
        let before = done.load(Ordering::Acquire);
        until(async || done.load(Ordering::Acquire) > before + 100).await;
        passwords.set(password);
        guarded.change_password(password).await;
        guarded.close_connections().await;
    }
    let before = done.load(Ordering::Acquire);
    until(async || done.load(Ordering::Acquire) > before + 100).await;
    ended.store(true, Ordering::Release);
    for call in calls {
        call.await.unwrap();
    }
    assert!(passwords.calls.load(Ordering::Relaxed) >= 3);
    client.shutdown().await;
}

/// If the provider says how long the credentials are valid, each connection logs in again before the end of this time,
/// and keeps its locks.
#[tokio::test]
async fn a_connection_logs_in_again_before_its_token_expires() {
    let guarded = Guarded::start("token").await;
    let passwords = Passwords::new("token");
    let provider = passwords.clone();
    let builder = guarded.builder().credentials_provider(move || {
        let credentials = provider.next().valid_for(SECOND);
        async move { Ok::<_, String>(credentials) }
    });
    let client = builder.connect_within(support::PATIENCE).await.unwrap();
    let guard = client.lock("k").acquire().await.unwrap();
    let before = guarded.logins().await;
    // The client can still open a connection after the acquisition, but not after a connection has logged in again.
    until(async || guarded.logins().await >= before + 2).await;
    let connections = client.stats().connections;
    until(async || guarded.logins().await >= before + 6).await;
    assert_eq!(
        client.stats().connections,
        connections,
        "no connection was replaced"
    );
    assert_eq!(guard.loss(), None);
    guard.release().await;
}

/// If the provider fails, connecting returns a typed error that contains the provider's text. `connect_within` waits
/// until the provider has credentials.
#[tokio::test]
async fn a_provider_that_fails_is_a_typed_error() {
    let guarded = Guarded::start("secret-password").await;
    let fails = || {
        guarded
            .builder()
            .credentials_provider(async || Err::<Credentials, _>("no token"))
    };
    let error = fails().connect().await.unwrap_err();
    assert!(
        matches!(error, ConnectError::NoCredentials { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("no token"), "{error}");

    let silent = guarded
        .builder()
        .wait(300 * MS)
        .credentials_provider(std::future::pending::<Result<Credentials, String>>);
    let error = silent.connect().await.unwrap_err();
    assert!(
        matches!(error, ConnectError::NoCredentials { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("no answer within"), "{error}");

    let wrong = guarded.builder().credentials_provider(async || {
        Ok::<_, String>(Credentials::new("locks", "wrong-password"))
    });
    let error = wrong.connect().await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Authentication { .. }),
        "{error:?}"
    );
    assert!(
        !format!("{error} {error:?}").contains("wrong-password"),
        "{error}"
    );

    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let late = guarded.builder().credentials_provider(move || {
        let call = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            match call {
                0..3 => Err("not yet"),
                _ => Ok(Credentials::new("locks", "secret-password")),
            }
        }
    });
    let debug = format!("{late:?}");
    assert!(!debug.contains("secret-password"), "{debug}");
    let client = late.connect_within(20 * SECOND).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    assert!(calls.load(Ordering::Relaxed) >= 4);
}

/// A provider that blocks its thread delays neither the holds nor the calls of other clients.
#[tokio::test]
async fn a_provider_that_blocks_delays_no_other_client() {
    let guarded = Guarded::start("token").await;
    let other = LockClient::connect(guarded.server.url()).await.unwrap();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let begun = Arc::new(AtomicBool::new(false));
    let has_begun = begun.clone();
    let blocks = guarded.builder().credentials_provider(move || {
        let (blocked, begun) = (blocked.clone(), begun.clone());
        async move {
            begun.store(true, Ordering::Release);
            // The test drops the sender at its end, so that later calls of the provider do not block.
            let _ = blocked.lock().unwrap().recv();
            Ok::<_, String>(Credentials::new("locks", "token"))
        }
    });
    let connecting = tokio::spawn(blocks.connect_within(20 * SECOND));
    until(async || has_begun.load(Ordering::Acquire)).await;
    let began = Instant::now();
    let lock = other.lock("k").lease(SECOND).renew(true);
    lock.run(async { tokio::time::sleep(2 * SECOND).await })
        .await
        .unwrap();
    assert!(began.elapsed() < 2 * SECOND + support::epsilon());
    assert!(!connecting.is_finished());
    drop(release);
    let client = connecting.await.unwrap().unwrap();
    client.lock("k").run(async {}).await.unwrap();
}

/// A call of the provider that never returns blocks only its own thread: after the time limit of the call, the client
/// calls the provider again.
#[tokio::test]
async fn a_provider_that_blocks_for_good_is_called_again() {
    let guarded = Guarded::start("token").await;
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(Some(blocked)));
    let blocks = guarded.builder().credentials_provider(move || {
        let first = blocked.lock().unwrap().take();
        async move {
            if let Some(blocked) = first {
                let _ = blocked.recv();
            }
            Ok::<_, String>(Credentials::new("locks", "token"))
        }
    });
    let client = blocks.connect_within(20 * SECOND).await.unwrap();
    client.lock("k").run(async {}).await.unwrap();
    drop(release);
}
