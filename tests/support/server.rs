//! Real Redis servers, as child processes on free ports that die with the test.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, aio::MultiplexedConnection};
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::{
    backstage,
    clock::Clocks,
    process::{Mortal, dies_with_parent, remove_in_the_end},
};

/// How long a server may take to answer its first command.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long a server that runs may take to answer what a test asks for.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// How often another process may take the free port first.
const TRIES: usize = 10;

/// A server of its own for one test.
///
/// What it is asked for is asked in real time, from a thread that a paused clock or a blocked runtime does not touch.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    tls_port: u16,
    folder: PathBuf,
    clocks: Option<Clocks>,
    settings: ServerBuilder,
    process: Option<Mortal>,
}

/// What one command has cost the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// How often it was called.
    pub calls: u64,
    /// How long it ran in all, in µs; a script with all that it calls.
    pub micros: u64,
}

/// Settings of a server before it starts.
#[derive(Debug, Default)]
pub struct ServerBuilder {
    args: Vec<String>,
    /// Certificate and key.
    tls: Option<(String, String)>,
    /// Whether it is a Sentinel.
    sentinel: bool,
    /// How far the server's clock is ahead of the system's, in seconds, if it can be set.
    ahead: Option<i64>,
}

impl ServerBuilder {
    /// One setting of `redis-server`.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Every write is on disk before it is answered, and a [restart](RedisServer::restart) finds it there.
    #[must_use]
    pub fn aof_always(self) -> Self {
        self.arg("--appendonly", "yes")
            .arg("--appendfsync", "always")
    }

    /// Follows another server.
    #[must_use]
    pub fn replica_of(self, master: &RedisServer) -> Self {
        self.arg("--replicaof", &format!("127.0.0.1 {}", master.port))
    }

    /// Its clock is ahead by so many seconds, and can be [set](RedisServer::set_clock). Works on Linux.
    #[must_use]
    pub fn clock_ahead(mut self, seconds: i64) -> Self {
        self.ahead = Some(seconds);
        self
    }

    /// Speaks TLS on one more port, with this certificate and key, which are PEM texts.
    #[must_use]
    pub fn tls(mut self, certificate: &str, key: &str) -> Self {
        self.tls = Some((certificate.to_owned(), key.to_owned()));
        self
    }

    /// Is a Sentinel that watches nobody.
    #[must_use]
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Panics
    /// If `redis-server` is not installed, or does not answer; the end of its log says why.
    pub async fn start(self) -> RedisServer {
        assert!(
            is_installed("redis-server"),
            "redis-server is needed by these tests: `sh tests/check.sh` installs it, or use the package redis-server (apt-get) or redis (brew)"
        );
        let folder = std::env::temp_dir().join(format!("redis-{}", Uuid::new_v4().simple()));
        fs::create_dir_all(&folder).expect("a temporary folder can be made");
        remove_in_the_end(&folder);
        let clocks = self.ahead.map(|seconds| {
            let clocks = Clocks::new(&folder);
            clocks.set_ahead(seconds);
            clocks
        });
        let mut server = RedisServer {
            port: 0,
            tls_port: 0,
            folder,
            clocks,
            settings: self,
            process: None,
        };
        for _ in 0..TRIES {
            server.port = free_port();
            if server.settings.tls.is_some() {
                server.tls_port = free_port();
            }
            server.spawn();
            if server.answers().await {
                return server;
            }
            server.kill();
            if !server.log().contains("in use") {
                break;
            }
        }
        panic!("redis-server does not start:\n{}", server.log());
    }
}

/// A port that nobody listens on at the moment.
///
/// # Panics
/// If there is none.
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
        let log = File::create(self.log_file()).expect("the server's log can be written");
        if self.settings.sentinel {
            let settings = self.folder.join("sentinel.conf");
            fs::write(&settings, "").expect("the settings can be written");
            command.arg(settings).arg("--sentinel");
        }
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            // A replica is served at once.
            .args(["--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(&self.folder)
            .arg("--unixsocket")
            .arg(self.socket())
            .args(&self.settings.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file has many handles"))
            .stderr(log);
        if let Some(clocks) = &self.clocks {
            clocks.wind(&mut command);
        }
        if let Some((certificate, key)) = &self.settings.tls {
            let certificate_file = self.folder.join("server.crt");
            let key_file = self.folder.join("server.key");
            fs::write(&certificate_file, certificate).expect("the certificate can be written");
            fs::write(&key_file, key).expect("the key can be written");
            command
                .args(["--tls-port", &self.tls_port.to_string()])
                .arg("--tls-cert-file")
                .arg(&certificate_file)
                .arg("--tls-key-file")
                .arg(key_file)
                .arg("--tls-ca-cert-file")
                .arg(certificate_file)
                .args(["--tls-auth-clients", "no"]);
        }
        self.process = Some(Mortal::start(command).expect("redis-server can be started"));
    }

    /// Whether this child answers, and not a stranger that took its port; it does not if it ends.
    async fn answers(&mut self) -> bool {
        let (client, pid) = (self.client(), self.pid());
        let process = self.process.as_mut().expect("it was started");
        let trying = async {
            loop {
                if process.ended().is_some() {
                    return false;
                }
                let client = client.clone();
                let answer = backstage::run(async move {
                    let mut connection = connect(&client).await?;
                    redis::cmd("PING")
                        .query_async::<String>(&mut connection)
                        .await?;
                    redis::cmd("INFO")
                        .arg("server")
                        .query_async::<String>(&mut connection)
                        .await
                });
                // Where a stranger answers, the child finds its port in use, and ends.
                if let Ok(info) = answer.await
                    && field(&info, "process_id") == pid.to_string()
                {
                    return true;
                }
                backstage::sleep(Duration::from_millis(5)).await;
            }
        };
        backstage::within(START_PATIENCE, trying)
            .await
            .unwrap_or(false)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("redis.sock")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What the server has written since it was started the last time.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn client(&self) -> Client {
        let mut args = self.settings.args.iter();
        let password = args.find(|arg| *arg == "--requirepass").and(args.next());
        let credentials = password
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        let url = format!("redis://{credentials}127.0.0.1:{}/", self.port);
        Client::open(url).expect("the URL of a test server is valid")
    }

    /// `redis://127.0.0.1:port/`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The URL that asks for RESP3.
    #[must_use]
    pub fn url_resp3(&self) -> String {
        format!("{}?protocol=resp3", self.url())
    }

    /// The URL of the same server's unix socket.
    #[must_use]
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
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

    /// The server's process, which is this library's child; 0 if it was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Mortal::pid)
    }

    /// Kills the server with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the server again, killed or not, on its port and with its settings.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn restart(&mut self) {
        self.begin_restart();
        assert!(
            self.answers().await,
            "the server did not start again:\n{}",
            self.log()
        );
    }

    /// As [`restart`](Self::restart), without waiting until it answers: it may have to load its data first.
    pub fn begin_restart(&mut self) {
        self.kill();
        self.spawn();
    }

    /// Sets the clock of a server that was started with [`clock_ahead`](ServerBuilder::clock_ahead) so many seconds
    /// ahead of the system's, or back.
    ///
    /// # Panics
    /// If it was not.
    pub fn set_clock(&self, ahead: i64) {
        let clocks = self.clocks.as_ref();
        clocks.expect("its clock can be set").set_ahead(ahead);
    }

    /// Where the server keeps its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stops the process where it stands (SIGSTOP).
    ///
    /// # Panics
    /// If it was killed.
    pub fn stop_process(&self) {
        self.signal("STOP");
    }

    /// Lets a stopped process go on (SIGCONT).
    ///
    /// # Panics
    /// If it was killed.
    pub fn continue_process(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        self.process
            .as_ref()
            .expect("the server was killed")
            .signal(name);
    }

    /// A connection of the test's own, which a paused clock or a blocked runtime does not disturb. Its commands wait
    /// for their answers without end.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn connection(&self) -> MultiplexedConnection {
        let client = self.client();
        backstage::run(async move {
            tokio::time::timeout(ANSWER_PATIENCE, connect(&client))
                .await
                .expect("the test server answers")
                .expect("the test server can be reached")
        })
        .await
    }

    /// Asks the server over a new connection.
    async fn ask<T: FromRedisValue + Send + 'static>(&self, command: &[&str]) -> T {
        let mut connection = self.connection().await;
        let mut asked = redis::cmd(command[0]);
        asked.arg(&command[1..]);
        let name = command.join(" ");
        backstage::run(async move {
            tokio::time::timeout(ANSWER_PATIENCE, asked.query_async(&mut connection))
                .await
                .unwrap_or_else(|_| panic!("the test server does not answer {name}"))
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        })
        .await
    }

    /// All keys, sorted.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]).await;
        keys.sort();
        keys
    }

    /// How often each command was called since the start or [`reset_stats`](Self::reset_stats), those inside scripts
    /// and those of this call's own connection included. Names are lowercase, `client|setinfo` is one.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn calls(&self) -> BTreeMap<String, u64> {
        let costs = self.costs().await.into_iter();
        costs.map(|(name, cost)| (name, cost.calls)).collect()
    }

    /// What each command has cost, as [`calls`](Self::calls) counts them.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn costs(&self) -> BTreeMap<String, Cost> {
        let info: String = self.ask(&["INFO", "commandstats"]).await;
        info.lines()
            .filter_map(|line| {
                let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let (calls, rest) = rest.split_once(",usec=")?;
                let cost = Cost {
                    calls: calls.parse().ok()?,
                    micros: rest.split(',').next()?.parse().ok()?,
                };
                Some((name.to_owned(), cost))
            })
            .collect()
    }

    /// Counts commands from zero again.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn reset_stats(&self) {
        self.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
    }

    /// How many clients are connected, this call's own connection not counted.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn client_count(&self) -> usize {
        let info: String = self.ask(&["INFO", "clients"]).await;
        let connected: usize = field(&info, "connected_clients")
            .parse()
            .expect("the server counts its clients");
        connected - 1
    }

    /// How many scripts were run.
    ///
    /// # Panics
    /// If the server cannot be reached.
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
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Connects without time-outs: those would be counted on a test's clock, and a server under load takes its time.
///
/// # Errors
/// If the server cannot be reached.
pub async fn connect(client: &Client) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// One field of what INFO answers.
fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_default()
}

/// One server for all tests of a process; tests use names of their own. It ends with the process.
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

/// Sends a command over a connection, and returns the answer.
///
/// # Panics
/// If there is none, or the server refuses the command.
pub async fn ask<T: FromRedisValue>(redis: &mut MultiplexedConnection, command: &Cmd) -> T {
    let answer = command.query_async(redis).await;
    answer.expect("the server carries the command out")
}

#[cfg(test)]
mod tests;
