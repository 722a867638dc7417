//! TLS with a client certificate, with root certificates that the client's settings contain, and with a server name.

use std::{
    env, fs,
    io::Read as _,
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use lock_runtime::{ConnectError, LockClient, LockClientBuilder, Pem};
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use support::{
    PATIENCE,
    process::of_this_test,
    server::{RedisServer, ask},
    until,
};

use crate::authority::{Authority, Identity};

const SECOND: Duration = Duration::from_secs(1);
/// The only name in the servers' certificates. The URLs of the tests contain IP addresses instead.
const NAME: &str = "redis.internal";

/// A certificate authority, and a client certificate that the authority has issued.
struct Scene {
    authority: Authority,
    client: Identity,
}

impl Scene {
    fn new() -> Self {
        let authority = Authority::new("authority");
        let client = authority.issue(&["locks"]);
        Self { authority, client }
    }

    /// Returns the settings of a server that requires client certificates of this authority.
    fn server(&self, settings: support::server::ServerBuilder) -> support::server::ServerBuilder {
        let Identity { certificate, key } = self.authority.issue(&[NAME]);
        let settings = settings.tls(&certificate, &key);
        settings.client_ca(&self.authority.certificate)
    }

    async fn start(&self) -> RedisServer {
        self.server(RedisServer::builder()).start().await
    }

    fn trusting(&self, url: &str) -> LockClientBuilder {
        LockClient::builder()
            .url(url)
            .wait(20 * SECOND)
            .tls_root_certificates(Pem::text(&self.authority.certificate))
            .tls_server_name(NAME)
    }

    /// Returns the builder of a client with all settings that the servers require.
    fn builder(&self, url: &str) -> LockClientBuilder {
        let Identity { certificate, key } = &self.client;
        let (certificate, key) = (Pem::text(certificate), Pem::text(key));
        self.trusting(url).tls_client_certificate(certificate, key)
    }
}

fn url(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}/", server.tls_port())
}

async fn works(client: &LockClient) {
    let guard = client.lock("k").acquire().await.unwrap();
    let waiting = client.lock("k").wait(10 * SECOND);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    until(async || client.lock("k").status().await.unwrap().waiters == 1).await;
    guard.release().await;
    waiting.await.unwrap().release().await;
}

#[tokio::test]
async fn a_client_certificate_works_on_one_server_and_its_replicas() {
    let scene = Scene::new();
    let server = scene.start().await;
    let _replica = RedisServer::builder().replica_of(&server).start().await;
    works(
        &scene
            .builder(&url(&server))
            .connect_within(PATIENCE)
            .await
            .unwrap(),
    )
    .await;
    // The client sends `WAIT` over a separate connection.
    let client = scene.builder(&url(&server)).wait(20 * SECOND);
    let client = client
        .replicas(1, 10 * SECOND)
        .connect_within(PATIENCE)
        .await
        .unwrap();
    client.lock("k").run(async {}).await.unwrap();
}

#[tokio::test]
async fn a_client_certificate_works_on_a_cluster() {
    let scene = Scene::new();
    let settings = RedisServer::builder()
        .cluster(5000)
        .arg("--tls-cluster", "yes");
    let server = scene.server(settings).start().await;
    let mut adding = redis::cmd("CLUSTER");
    adding.arg("ADDSLOTS").arg((0..16384).collect::<Vec<u16>>());
    ask::<()>(&mut server.connection().await, &adding).await;
    let url = format!("rediss+cluster://127.0.0.1:{}", server.tls_port());
    let mut state = redis::cmd("CLUSTER");
    state.arg("INFO");
    until(async || {
        let info: String = ask(&mut server.connection().await, &state).await;
        info.contains("cluster_state:ok")
    })
    .await;
    works(&scene.builder(&url).connect_within(PATIENCE).await.unwrap()).await;
}

#[tokio::test]
async fn a_client_certificate_works_with_sentinels() {
    let scene = Scene::new();
    let primary = scene.start().await;
    let settings = RedisServer::builder()
        .sentinel()
        .arg("--tls-replication", "yes");
    let sentinel = scene.server(settings).start().await;
    let mut monitor = redis::cmd("SENTINEL");
    monitor.arg(&["MONITOR", "shop", "127.0.0.1"]);
    monitor.arg(primary.tls_port()).arg(1);
    ask::<()>(&mut sentinel.connection().await, &monitor).await;
    let url = format!("rediss+sentinel://127.0.0.1:{}/shop", sentinel.tls_port());
    works(&scene.builder(&url).connect_within(PATIENCE).await.unwrap()).await;
    let refused = scene
        .trusting(&url)
        .connect_within(PATIENCE)
        .await
        .unwrap_err();
    assert!(matches!(refused, ConnectError::Tls { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_client_certificate_works_on_a_redlock() {
    let scene = Scene::new();
    let servers = [
        scene.start().await,
        scene.start().await,
        scene.start().await,
    ];
    let hosts = servers
        .each_ref()
        .map(|server| format!("127.0.0.1:{}", server.tls_port()));
    let url = format!("redlocks://{}", hosts.join(","));
    let client = scene.builder(&url).connect_within(PATIENCE).await.unwrap();
    client.lock("k").wait(PATIENCE).run(async {}).await.unwrap();
    // A server that does not answer in time fails for another reason.
    until(async || {
        let refused = scene.trusting(&url).connect().await.unwrap_err();
        let ConnectError::NoQuorum { failures, .. } = &refused else {
            panic!("{refused:?}");
        };
        let is_of_tls = |failure: &ConnectError| matches!(failure, ConnectError::Tls { .. });
        failures.iter().all(is_of_tls)
    })
    .await;
}

/// Asserts that connecting fails as soon as the server has answered, and that the error contains no part of a key.
/// Returns the error.
async fn refusal(builder: LockClientBuilder) -> ConnectError {
    let settings = format!("{builder:?}");
    let started = Instant::now();
    let error = builder.connect_within(PATIENCE).await.unwrap_err();
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    for text in [settings, error.to_string(), format!("{error:?}")] {
        assert!(!text.contains("BEGIN"), "{text}");
    }
    error
}

#[tokio::test]
async fn a_handshake_that_fails_is_told() {
    let scene = Scene::new();
    let server = scene.start().await;
    let url = url(&server);
    let stranger = Authority::new("stranger");
    let foreign = stranger.issue(&["locks"]);
    let without = scene.trusting(&url);
    let wrong = scene.trusting(&url);
    let wrong =
        wrong.tls_client_certificate(Pem::text(foreign.certificate), Pem::text(foreign.key));
    let untrusted = scene.builder(&url);
    let untrusted = untrusted.tls_root_certificates(Pem::text(stranger.certificate));
    let misnamed = scene.builder(&url).tls_server_name("redis.example");
    for (builder, told) in [
        (without, "fatal alert: CertificateRequired"),
        (wrong, "fatal alert: UnknownCA"),
        (untrusted, "certificate"),
        (misnamed, "redis.internal"),
    ] {
        let error = refusal(builder).await;
        assert!(matches!(error, ConnectError::Tls { .. }), "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_told() {
    let scene = Scene::new();
    let url = "rediss://127.0.0.1:1/";
    let folder = env::temp_dir().join(format!("lock-tls-{}", uuid::Uuid::new_v4()));
    fs::create_dir(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        Pem::file(path)
    };
    let Identity { certificate, key } = &scene.client;
    let other = scene.authority.issue(&["other"]);
    let (good, fits) = (file("client.pem", certificate), file("client.key", key));
    let client = |certificate: &Pem, key: &Pem| {
        let builder = LockClient::builder().url(url);
        builder.tls_client_certificate(certificate.clone(), key.clone())
    };
    let roots = |pem: Pem| LockClient::builder().url(url).tls_root_certificates(pem);
    let missing = Pem::file(folder.join("missing.pem"));
    let broken =
        "-----BEGIN CERTIFICATE-----\nbm90IGEgY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n";
    for (builder, told) in [
        (roots(missing.clone()), "missing.pem: No such file"),
        (roots(Pem::file(&folder)), "directory"),
        (
            roots(file("empty.pem", "")),
            "empty.pem: there is no certificate",
        ),
        (
            roots(file("key-only.pem", key)),
            "key-only.pem: there is no certificate",
        ),
        (
            roots(file("broken.pem", broken)),
            "broken.pem: a certificate is malformed",
        ),
        (roots(Pem::file(certificate)), "use `Pem::text`"),
        (client(&missing, &fits), "client certificate in"),
        (client(&good, &missing), "missing.pem: No such file"),
        (client(&good, &good), "client.pem: there is no private key"),
        (client(&good, &Pem::file(key)), "use `Pem::text`"),
        (
            client(&good, &file("other.key", &other.key)),
            "other.key: the key does not belong to the client certificate",
        ),
        (
            client(&good, &fits).tls_server_name("not a name"),
            "`not a name`",
        ),
        (
            client(&good, &fits).url("redis://127.0.0.1:1/"),
            "rediss://",
        ),
        (client(&good, &fits).url("redlock://a,b,c"), "rediss://"),
        (client(&good, &fits).url("redis+cluster://a"), "rediss://"),
        (
            client(&good, &fits).url("redis+sentinel://a/shop"),
            "rediss://",
        ),
    ] {
        let error = refusal(builder).await;
        assert!(matches!(error, ConnectError::InvalidTls { .. }), "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
    // The in-process backend opens no connection, so it accepts these settings.
    let client = client(&good, &fits)
        .url("memory:")
        .connect_within(PATIENCE)
        .await
        .unwrap();
    client.lock("k").run(async {}).await.unwrap();
    fs::remove_dir_all(folder).unwrap();
}

/// In its TLS handshake, the client sends the value of `tls_server_name` as the server's name.
#[tokio::test]
async fn the_server_sees_the_server_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let seeing = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut acceptor = rustls::server::Acceptor::default();
        loop {
            acceptor.read_tls(&mut socket.by_ref()).unwrap();
            if let Some(accepted) = acceptor.accept().unwrap() {
                return accepted.client_hello().server_name().map(str::to_owned);
            }
        }
    });
    let scene = Scene::new();
    let url = format!("rediss://127.0.0.1:{port}/");
    scene.builder(&url).connect().await.unwrap_err();
    assert_eq!(seeing.join().unwrap().as_deref(), Some(NAME));
}

/// A client certificate that is replaced on disk is used for the next connection. While the file is unreadable, the
/// client uses the certificate that it has read last.
#[tokio::test]
async fn a_replaced_certificate_is_used_for_the_next_connection() {
    let scene = Scene::new();
    let server = scene.start().await;
    let folder = server.folder();
    let (certificate, key) = (folder.join("client.pem"), folder.join("client.key"));
    let write = |identity: &Identity| {
        fs::write(&certificate, &identity.certificate).unwrap();
        fs::write(&key, &identity.key).unwrap();
    };
    write(&scene.client);
    let builder = scene.trusting(&url(&server)).wait(20 * SECOND);
    let builder = builder.tls_client_certificate(Pem::file(&certificate), Pem::file(&key));
    let client = builder.connect_within(PATIENCE).await.unwrap();
    let mut admin = server.connection().await;
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let mut kill_pubsub = redis::cmd("CLIENT");
    kill_pubsub.arg(&["KILL", "TYPE", "pubsub"]);

    fs::write(&key, "").unwrap();
    ask::<()>(&mut admin, &kill).await;
    ask::<()>(&mut admin, &kill_pubsub).await;
    client.lock("k").run(async {}).await.unwrap();

    // From now on, the server accepts only the client certificates of another authority.
    let successor = Authority::new("successor");
    let ca = folder.join("successor.crt");
    fs::write(&ca, &successor.certificate).unwrap();
    write(&successor.issue(&["locks"]));
    let mut set = redis::cmd("CONFIG");
    set.arg(&["SET", "tls-ca-cert-file"])
        .arg(ca.to_str().unwrap());
    ask::<()>(&mut admin, &set).await;
    ask::<()>(&mut admin, &kill).await;
    ask::<()>(&mut admin, &kill_pubsub).await;
    client.lock("k").run(async {}).await.unwrap();
}

/// A service can install any TLS provider for its process, before or after it connects, or none. A client neither uses
/// nor changes what is installed. The service can also use another version of rustls. Only a new process has no provider
/// yet.
#[tokio::test]
async fn the_provider_of_the_process_belongs_to_the_service() {
    let authority = Authority::new("authority");
    let Identity { certificate, key } = authority.issue(&[NAME]);
    let server = RedisServer::builder().tls(&certificate, &key);
    let server = server.start().await;
    for provider in ["none", "aws-lc", "ring", "another version"] {
        for installed in ["before", "after"] {
            let mut service = of_this_test(
                "tls::service",
                &[
                    ("SERVICE_URL", &url(&server)),
                    ("SERVICE_ROOT", &authority.certificate),
                    ("SERVICE_PROVIDER", provider),
                    ("SERVICE_INSTALLED", installed),
                ],
            );
            let ended = service.output().unwrap();
            assert!(
                ended.status.success(),
                "{provider} {installed}:\n{}",
                String::from_utf8_lossy(&ended.stderr)
            );
        }
    }
}

#[tokio::test]
#[ignore = "run as a process of its own by the test above"]
async fn service() {
    let Ok(url) = env::var("SERVICE_URL") else {
        return;
    };
    let of_process = || CryptoProvider::get_default().map(|provider| format!("{provider:?}"));
    let install = || {
        let provider = match env::var("SERVICE_PROVIDER").unwrap().as_str() {
            "aws-lc" => aws_lc_rs::default_provider(),
            "ring" => ring::default_provider(),
            "another version" => {
                let provider = Arc::new(rustls_ring_next::DEFAULT_PROVIDER);
                let config = rustls_next::ClientConfig::builder(provider)
                    .with_root_certificates(rustls_next::RootCertStore::empty())
                    .with_no_client_auth()
                    .unwrap();
                assert!(!config.provider().tls13_cipher_suites.is_empty());
                return None;
            }
            _ => return None,
        };
        let name = format!("{provider:?}");
        provider.install_default().unwrap();
        Some(name)
    };
    let is_before = env::var("SERVICE_INSTALLED").unwrap() == "before";
    let mut expected = if is_before { install() } else { None };
    let root = env::var("SERVICE_ROOT").unwrap();
    let connects = async || {
        let builder = LockClient::builder().url(&url).wait(20 * SECOND);
        let builder = builder.tls_root_certificates(Pem::text(&root));
        let builder = builder.tls_server_name(NAME);
        works(&builder.connect_within(PATIENCE).await.unwrap()).await;
    };
    connects().await;
    assert_eq!(of_process(), expected);
    if !is_before {
        expected = install();
        connects().await;
        assert_eq!(of_process(), expected);
    }
}
