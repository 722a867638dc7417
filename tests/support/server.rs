//! Real Redis servers, as child processes on free ports that die with the test.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::process::{dies_with_parent, signal, spawn};

/// How long a server may take to answer its first command.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// A server of its own for one test.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    tls_port: u16,
    folder: PathBuf,
    args: Vec<String>,
    child: Option<Child>,
}

/// Settings of a server before it starts.
#[derive(Debug, Default)]
pub struct ServerBuilder {
    args: Vec<String>,
    tls_port: u16,
}

impl ServerBuilder {
    /// One setting of `redis-server`.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Follows another server.
    #[must_use]
    pub fn replica_of(self, master: &RedisServer) -> Self {
        self.arg("--replicaof", &format!("127.0.0.1 {}", master.port))
            .arg("--repl-diskless-sync-delay", "0")
    }

    /// Speaks TLS on one more port, with this certificate and key, which are PEM texts.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn tls(mut self, certificate: &str, key: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("redis-tls-{}", Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
        let (certificate_file, key_file) = (folder.join("server.crt"), folder.join("server.key"));
        std::fs::write(&certificate_file, certificate).expect("the certificate can be written");
        std::fs::write(&key_file, key).expect("the key can be written");
        self.tls_port = free_port();
        let port = self.tls_port.to_string();
        self.arg("--tls-port", &port)
            .arg("--tls-cert-file", &certificate_file.display().to_string())
            .arg("--tls-key-file", &key_file.display().to_string())
            .arg(
                "--tls-ca-cert-file",
                &certificate_file.display().to_string(),
            )
            .arg("--tls-auth-clients", "no")
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Panics
    /// If `redis-server` is not installed, or does not answer.
    pub async fn start(self) -> RedisServer {
        let folder = std::env::temp_dir().join(format!("redis-{}", Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
        let mut server = RedisServer {
            port: 0,
            tls_port: self.tls_port,
            folder,
            args: self.args,
            child: None,
        };
        // Another process may take the free port first; then the next one.
        for _ in 0..10 {
            server.port = free_port();
            server.spawn();
            if server.answers().await {
                return server;
            }
            server.kill();
        }
        panic!("no redis-server could be started in ten tries");
    }
}

/// A port that nobody listens on at the moment.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener
        .local_addr()
        .expect("a bound listener has an address")
        .port()
}

impl RedisServer {
    /// A server that persists nothing.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Settings for a server.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    fn spawn(&mut self) {
        let mut command = dies_with_parent("redis-server");
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(&self.folder)
            .arg("--unixsocket")
            .arg(self.folder.join("redis.sock"))
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(spawn(command).expect(
            "redis-server is needed by these tests: `sh tests/check.sh` installs it, or use the package redis-server (apt-get) or redis (brew)",
        ));
    }

    async fn answers(&mut self) -> bool {
        let trying = async {
            loop {
                let child = self.child.as_mut().expect("a started server has a process");
                if !matches!(child.try_wait(), Ok(None)) {
                    return false;
                }
                if let Ok(mut connection) = self.client().get_multiplexed_async_connection().await
                    && let Ok(answer) = redis::cmd("PING")
                        .query_async::<String>(&mut connection)
                        .await
                {
                    return answer == "PONG" && self.is_mine(&mut connection).await;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(START_PATIENCE, trying)
            .await
            .unwrap_or(false)
    }

    /// Whether what answers on the port is this child.
    async fn is_mine(&self, connection: &mut MultiplexedConnection) -> bool {
        let info: String = redis::cmd("INFO")
            .arg("server")
            .query_async(connection)
            .await
            .unwrap_or_default();
        info.contains(&format!("process_id:{}\r", self.pid()))
    }

    fn client(&self) -> redis::Client {
        let password = self
            .args
            .iter()
            .skip_while(|arg| *arg != "--requirepass")
            .nth(1);
        let credentials = password
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        let url = format!("redis://{credentials}127.0.0.1:{}/", self.port);
        redis::Client::open(url).expect("the URL of a test server is valid")
    }

    /// `redis://127.0.0.1:port/`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The URL of the same server's unix socket.
    #[must_use]
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.folder.join("redis.sock").display())
    }

    /// The port that speaks TLS, if one does.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process, which is this library's child.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Kills the server with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a killed server again, on its port.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn restart(&mut self) {
        self.kill();
        self.spawn();
        assert!(self.answers().await, "the server did not start again");
    }

    /// Stops the process where it stands (SIGSTOP).
    pub fn stop_process(&self) {
        signal(self.pid(), "STOP");
    }

    /// Lets a stopped process go on (SIGCONT).
    pub fn continue_process(&self) {
        signal(self.pid(), "CONT");
    }

    /// A connection of the test's own.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn connection(&self) -> MultiplexedConnection {
        self.client()
            .get_multiplexed_async_connection()
            .await
            .expect("the test server can be reached")
    }

    /// All keys, sorted.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query_async(&mut self.connection().await)
            .await
            .expect("the server lists its keys");
        keys.sort();
        keys
    }

    /// How often each command was called, those inside scripts included.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn calls(&self) -> BTreeMap<String, u64> {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.connection().await)
            .await
            .expect("the server tells its statistics");
        info.lines()
            .filter_map(|line| {
                let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let calls = rest.split(',').next()?.parse().ok()?;
                Some((name.to_owned(), calls))
            })
            .collect()
    }

    /// How many scripts were run.
    pub async fn scripts(&self) -> u64 {
        let calls = self.calls().await;
        ["evalsha", "eval"]
            .iter()
            .filter_map(|name| calls.get(*name))
            .sum()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One server for all tests of a process; tests use names of their own.
pub async fn shared_server() -> &'static RedisServer {
    static SHARED: OnceCell<RedisServer> = OnceCell::const_new();
    SHARED.get_or_init(RedisServer::start).await
}

/// Whether a program can be started.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}
