//! Real Redis servers, which are child processes on free ports and end with the test.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{LazyLock, Mutex, PoisonError},
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

/// The longest time for which a test waits until a new server answers its first command.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// The longest time for which a test waits until a running server answers a command.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// The maximum number of attempts to start a server. An attempt fails if another process takes the free port before the
/// server does.
const TRIES: usize = 10;

/// A Redis server. Only one test uses the server, unless it is the [shared server](shared_server).
///
/// All methods talk to the server in real time, on a thread that keeps running while the test's clock is paused or its
/// runtime is blocked.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    tls_port: u16,
    bus_port: u16,
    folder: PathBuf,
    clocks: Option<Clocks>,
    settings: ServerBuilder,
    process: Option<Mortal>,
}

/// The cost of all calls of one command on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// The number of calls of the command.
    pub calls: u64,
    /// The total time in µs. The time of a script includes the commands that it calls.
    pub micros: u64,
}

/// The settings of a server that has not started yet.
#[derive(Debug, Clone, Default)]
pub struct ServerBuilder {
    args: Vec<String>,
    /// The certificate and the key of the TLS port, if there is one.
    tls: Option<(String, String)>,
    /// The certificate of the authority whose client certificates the TLS port requires.
    client_ca: Option<String>,
    /// Whether the server is a Sentinel.
    sentinel: bool,
    /// The time in ms after which this server counts another node of its cluster as failed if that node does not
    /// answer. `None` if this server is not a node of a cluster.
    cluster: Option<u32>,
    /// The number of seconds by which the server's clock is ahead of the system's clock at the start. `None` if the
    /// test cannot set the server's clock.
    ahead: Option<i64>,
}

impl ServerBuilder {
    /// Adds a setting to the command line of `redis-server`.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Makes the server write every change to disk before it answers, so that no change is lost in a
    /// [restart](RedisServer::restart).
    #[must_use]
    pub fn aof_always(self) -> Self {
        self.arg("--appendonly", "yes")
            .arg("--appendfsync", "always")
    }

    /// Makes the server a replica of another one.
    #[must_use]
    pub fn replica_of(self, master: &RedisServer) -> Self {
        self.replica_at(master.port)
    }

    /// Makes the server a replica of the server at this port, which may be the port of a proxy.
    #[must_use]
    pub fn replica_at(mut self, port: u16) -> Self {
        let master = [
            "--replicaof".to_owned(),
            "127.0.0.1".to_owned(),
            port.to_string(),
        ];
        self.args.extend(master);
        self
    }

    /// Sets the server's clock ahead by this many seconds, and lets the test [set](RedisServer::set_clock) it later.
    /// The clock can be set only on Linux.
    #[must_use]
    pub fn clock_ahead(mut self, seconds: i64) -> Self {
        self.ahead = Some(seconds);
        self
    }

    /// Makes the server also listen with TLS on a second port, with this certificate and key in PEM format.
    #[must_use]
    pub fn tls(mut self, certificate: &str, key: &str) -> Self {
        self.tls = Some((certificate.to_owned(), key.to_owned()));
        self
    }

    /// Makes the TLS port require client certificates that this authority has issued.
    #[must_use]
    pub fn client_ca(mut self, certificate: &str) -> Self {
        self.client_ca = Some(certificate.to_owned());
        self
    }

    /// Lets clients send `DEBUG` commands.
    #[must_use]
    pub fn debug_commands(self) -> Self {
        if is_version_7() {
            self.arg("--enable-debug-command", "yes")
        } else {
            self
        }
    }

    /// Makes the server a Sentinel that watches no other server.
    #[must_use]
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Makes the server a node of a Redis Cluster that knows no other node yet. A node counts another node as failed
    /// after `timeout_ms` without an answer from it.
    #[must_use]
    pub fn cluster(mut self, timeout_ms: u32) -> Self {
        self.cluster = Some(timeout_ms);
        self
    }

    /// Makes the server refuse the commands for shard channels as unknown, like a server before version 7.0. The command
    /// `PUBSUB` has the name `OLDPUBSUB`.
    #[must_use]
    pub fn without_shard_channels(mut self) -> Self {
        if !has_shard_channels() {
            return self;
        }
        for (command, name) in [
            ("SPUBLISH", "OLDSPUBLISH"),
            ("SSUBSCRIBE", "OLDSSUBSCRIBE"),
            ("PUBSUB", "OLDPUBSUB"),
        ] {
            let renamed = ["--rename-command", command, name];
            self.args.extend(renamed.map(str::to_owned));
        }
        self
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Panics
    /// If `redis-server` is not installed, or does not answer. The panic message contains the server's log, which gives
    /// the reason.
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
            bus_port: 0,
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
            if server.settings.cluster.is_some() {
                (server.port, server.bus_port) = cluster_ports();
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

/// How many ports [`free_port`] remembers. A system has about 28,000 ports to choose from, and the fault matrix starts more
/// servers.
const PORTS_KEPT: usize = 4000;

/// Returns a port on which nobody listens at the moment. Returns it again only after 4,000 other ports, so that no
/// other server of this process takes the port of a server that a test has killed and starts again later.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn free_port() -> u16 {
    static ISSUED: Mutex<VecDeque<u16>> = Mutex::new(VecDeque::new());
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = listener
            .local_addr()
            .expect("a bound listener has an address")
            .port();
        let mut issued = ISSUED.lock().unwrap_or_else(PoisonError::into_inner);
        if !issued.contains(&port) {
            issued.push_back(port);
            if issued.len() > PORTS_KEPT {
                issued.pop_front();
            }
            return port;
        }
    }
}

/// Returns two free ports for a node of a cluster: the port for clients, and the port for other nodes. In Redis
/// versions before 7, the second port is always 10,000 above the first.
fn cluster_ports() -> (u16, u16) {
    if is_version_7() {
        return (free_port(), free_port());
    }
    loop {
        let bus_port = free_port();
        let Some(port) = bus_port.checked_sub(10_000).filter(|port| *port > 1024) else {
            continue;
        };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return (port, bus_port);
        }
    }
}

/// Returns whether the installed `redis-server` names the subcommand when it refuses a command such as `CLIENT ID`.
#[must_use]
pub fn names_subcommands() -> bool {
    is_version_7()
}

/// Returns whether the installed `redis-server` has shard channels.
#[must_use]
pub fn has_shard_channels() -> bool {
    is_version_7()
}

/// Returns whether the installed `redis-server` is of version 7 or later, and so accepts the settings that version 7
/// has added.
fn is_version_7() -> bool {
    static IS_VERSION_7: LazyLock<bool> = LazyLock::new(|| {
        let version = Command::new("redis-server").arg("--version").output();
        let version = version.expect("redis-server tells its version").stdout;
        let version = String::from_utf8_lossy(&version).into_owned();
        let major = version.split_once("v=").and_then(|(_, rest)| {
            let (major, _) = rest.split_once('.')?;
            major.parse::<u32>().ok()
        });
        major.is_some_and(|major| major >= 7)
    });
    *IS_VERSION_7
}

impl RedisServer {
    /// Starts a server that persists nothing.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns a builder for a server.
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
            // With this setting, a primary does not wait for further replicas before it synchronizes the first one.
            .args(["--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(&self.folder)
            .arg("--unixsocket")
            .arg(self.socket())
            .args(&self.settings.args)
            .stdin(Stdio::null())
            .stdout(
                log.try_clone()
                    .expect("the handle of the log can be cloned"),
            )
            .stderr(log);
        if let Some(timeout_ms) = self.settings.cluster {
            command
                .args(["--cluster-enabled", "yes"])
                .args(["--cluster-node-timeout", &timeout_ms.to_string()]);
            if is_version_7() {
                command.args(["--cluster-port", &self.bus_port.to_string()]);
            }
        }
        if let Some(clocks) = &self.clocks {
            clocks.wind(&mut command);
        }
        if let Some((certificate, key)) = &self.settings.tls {
            let certificate_file = self.folder.join("server.crt");
            let key_file = self.folder.join("server.key");
            fs::write(&certificate_file, certificate).expect("the certificate can be written");
            fs::write(&key_file, key).expect("the key can be written");
            let client_ca = self.settings.client_ca.as_ref();
            let ca_file = self.folder.join("ca.crt");
            fs::write(&ca_file, client_ca.unwrap_or(certificate))
                .expect("the certificate can be written");
            let asks = if client_ca.is_some() { "yes" } else { "no" };
            command
                .args(["--tls-port", &self.tls_port.to_string()])
                .arg("--tls-cert-file")
                .arg(&certificate_file)
                .arg("--tls-key-file")
                .arg(key_file)
                .arg("--tls-ca-cert-file")
                .arg(ca_file)
                .args(["--tls-auth-clients", asks]);
        }
        self.process = Some(Mortal::start(command).expect("redis-server can be started"));
    }

    /// Waits until the server answers, and then returns true. Returns false if the server ends, or does not answer
    /// within [`START_PATIENCE`]. Ignores the answers of another process on the server's port.
    async fn answers(&mut self) -> bool {
        let (client, pid) = (self.client(), self.pid());
        let process = self.process.as_mut().expect("the server was started");
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
                // If another process answers, the server finds its port in use and ends.
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

    /// Returns the server's log since its last start.
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

    /// Returns `redis://127.0.0.1:port/`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Returns the server's URL with RESP3 as its protocol.
    #[must_use]
    pub fn url_resp3(&self) -> String {
        format!("{}?protocol=resp3", self.url())
    }

    /// Returns the URL of the server's Unix socket.
    #[must_use]
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Returns the TLS port, or 0 if the server does not listen with TLS.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// Returns the port of the cluster bus, or 0 if the server is not a node of a cluster.
    #[must_use]
    pub fn bus_port(&self) -> u16 {
        self.bus_port
    }

    /// Returns the server's port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the ID of the server's process, which is a child of this process, or 0 if the server was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Mortal::pid)
    }

    /// Kills the server with SIGKILL and waits until it has ended.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills the server if it still runs, and starts it again on the same port and with the same settings.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn restart(&mut self) {
        self.begin_restart();
        assert!(
            self.answers().await,
            "the server did not start again:\n{}",
            self.log()
        );
    }

    /// Like [`restart`](Self::restart), but does not wait until the server answers. The server can need time to load
    /// its data before it answers.
    pub fn begin_restart(&mut self) {
        self.kill();
        self.spawn();
    }

    /// Sets the server's clock this many seconds ahead of the system's clock. A negative number sets the clock back.
    ///
    /// # Panics
    /// If the server was not started with [`clock_ahead`](ServerBuilder::clock_ahead).
    pub fn set_clock(&self, ahead: i64) {
        let clocks = self.clocks.as_ref();
        clocks
            .expect("the server was started with `clock_ahead`")
            .set_ahead(ahead);
    }

    /// Returns the folder of the server's files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stops the process (SIGSTOP).
    ///
    /// # Panics
    /// If the process was killed.
    pub fn stop_process(&self) {
        self.signal("STOP");
    }

    /// Continues a stopped process (SIGCONT).
    ///
    /// # Panics
    /// If the process was killed.
    pub fn continue_process(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        self.process
            .as_ref()
            .expect("the server was not killed")
            .signal(name);
    }

    /// Returns a new connection, which works even if the test's clock is paused or its runtime is blocked. Commands on
    /// this connection wait for their answers without a time-out.
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

    /// Sends the server a command over a new connection.
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

    /// Returns all keys, sorted.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]).await;
        keys.sort();
        keys
    }

    /// Returns the number of calls of each command since the start or [`reset_stats`](Self::reset_stats), including
    /// calls inside scripts and the calls of this method's own connection. Names are lowercase, and a subcommand has a
    /// name like `client|setinfo`.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn calls(&self) -> BTreeMap<String, u64> {
        let costs = self.costs().await.into_iter();
        costs.map(|(name, cost)| (name, cost.calls)).collect()
    }

    /// Returns the cost of each command that [`calls`](Self::calls) counts.
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

    /// Resets the counters of commands to zero.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn reset_stats(&self) {
        self.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
    }

    /// Returns the number of connected clients, without this method's own connection.
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

    /// Returns the number of scripts that were run since the start or [`reset_stats`](Self::reset_stats).
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

/// Connects without time-outs. A time-out would use the test's clock, which can be paused, and a server under load can
/// be slow.
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

/// Returns one field of the reply to INFO, or an empty text if the field is missing.
fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_default()
}

/// Returns a server that all tests of a process share. Each test must use key names of its own. The server ends with
/// the process.
pub async fn shared_server() -> &'static RedisServer {
    static SHARED: OnceCell<RedisServer> = OnceCell::const_new();
    SHARED.get_or_init(RedisServer::start).await
}

/// Returns whether a program is installed.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Sends a command over a connection and returns the answer.
///
/// # Panics
/// If there is no answer, or the server refuses the command.
pub async fn ask<T: FromRedisValue>(redis: &mut MultiplexedConnection, command: &Cmd) -> T {
    let answer = command.query_async(redis).await;
    answer.expect("the server carries the command out")
}

#[cfg(test)]
mod tests;
