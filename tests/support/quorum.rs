//! Several independent Redis servers on which a Redlock runs.

use tokio::sync::OnceCell;

use crate::{
    proxy::FaultProxy,
    server::{RedisServer, ask},
};

/// The independent servers of a Redlock.
#[derive(Debug)]
pub struct Quorum {
    /// The servers. A test may kill and [restart](RedisServer::restart) them.
    pub servers: Vec<RedisServer>,
}

impl Quorum {
    /// Starts servers that have never granted a lock and that persist nothing.
    pub async fn start(servers: usize) -> Self {
        let mut started = Vec::new();
        for _ in 0..servers {
            started.push(RedisServer::start().await);
        }
        Self { servers: started }
    }

    /// Makes the servers look as if they had granted locks before, so that clients put a server in quarantine if it
    /// later loses its state.
    pub async fn in_use(self) -> Self {
        for server in &self.servers {
            ask::<()>(
                &mut server.connection().await,
                redis::cmd("MSET")
                    .arg(&[("lock:fence", "1"), ("lock:fence:whole", "whole|1|1000")]),
            )
            .await;
        }
        self
    }

    /// Returns the URL `redlock://127.0.0.1:port,127.0.0.1:port,..`.
    #[must_use]
    pub fn url(&self) -> String {
        url_of(self.servers.iter().map(RedisServer::port))
    }

    /// Starts a proxy in front of each server.
    pub async fn proxies(&self) -> Vec<FaultProxy> {
        let mut proxies = Vec::new();
        for server in &self.servers {
            proxies.push(FaultProxy::start(server.port()).await);
        }
        proxies
    }

    /// Returns the keys on all servers that were not killed, without the token counters and the marks.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for server in self.servers.iter().filter(|server| server.pid() != 0) {
            let stored = server.keys().await.into_iter();
            keys.extend(stored.filter(|key| !key.contains("fence")));
        }
        keys
    }
}

/// Returns the URL by which a client reaches the Redlock's servers through these proxies.
#[must_use]
pub fn url_through(proxies: &[FaultProxy]) -> String {
    url_of(proxies.iter().map(FaultProxy::port))
}

fn url_of(ports: impl Iterator<Item = u16>) -> String {
    let hosts: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redlock://{}/", hosts.join(","))
}

/// Returns three servers that all tests of a process share. Each test must use key names of its own. The servers end
/// with the process.
pub async fn shared_quorum() -> &'static Quorum {
    static SHARED: OnceCell<Quorum> = OnceCell::const_new();
    SHARED
        .get_or_init(async || Quorum::start(3).await.in_use().await)
        .await
}
