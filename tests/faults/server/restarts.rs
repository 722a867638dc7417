//! Row 53 of `docs/faults.md`: the server restarts, and the IDs of its connections start again at one.

use lock_runtime::LockClient;
use support::{proxy::FaultProxy, server::RedisServer};

use crate::fixture::{client, row, until};

const CLIENTS: usize = 8;
const STRANGERS: usize = 60;

/// Restarts the server while the lock clients cannot connect. Plain Redis clients (the strangers) connect before the
/// lock clients, and get the connection IDs that the lock clients had before. Asserts that lock clients that reconnect
/// do not close the connections of other clients.
async fn restarted(
    server: &mut RedisServer,
    ours: &str,
    theirs: &str,
    shut: impl FnOnce(),
    open: impl FnOnce(),
) {
    let mut clients: Vec<LockClient> = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(ours).await);
    }
    let connections = |client: &LockClient| client.stats().connections;
    let before: Vec<_> = clients.iter().map(connections).collect();
    shut();
    server.restart().await;
    let theirs = redis::Client::open(theirs).unwrap();
    let mut strangers: Vec<_> = (0..STRANGERS)
        .map(|_| theirs.get_connection().unwrap())
        .collect();
    open();
    until(async || {
        let mut now = clients.iter().map(connections).zip(&before);
        now.all(|(now, before)| now > *before)
    })
    .await;
    for client in &clients {
        client.lock("k").run(async {}).await.unwrap();
    }
    let closed = strangers.iter_mut().filter_map(|stranger| {
        let answer = redis::cmd("PING").query::<String>(stranger);
        answer.err()
    });
    assert_eq!(closed.count(), 0, "connections of strangers were closed");
}

/// Row 53 of `docs/faults.md`: the clients connect over TCP.
#[tokio::test]
async fn row_53_restarted_tcp() {
    row(53, async |_| {
        let mut server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let (ours, theirs) = (proxy.url(), server.url());
        let shut = || proxy.refuse(true);
        let open = || proxy.refuse(false);
        restarted(&mut server, &ours, &theirs, shut, open).await;
    })
    .await;
}

/// Row 53 of `docs/faults.md`: the clients connect over a Unix socket, where all connections have the same address.
#[tokio::test]
async fn row_53_restarted_unix() {
    row(53, async |_| {
        let mut server = RedisServer::start().await;
        let theirs = server.unix_url();
        let socket = server.folder().join("redis.sock");
        let link = server.folder().join("ours.sock");
        let open = || std::os::unix::fs::symlink(&socket, &link).unwrap();
        open();
        let ours = format!("redis+unix://{}", link.display());
        let shut = || std::fs::remove_file(&link).unwrap();
        restarted(&mut server, &ours, &theirs, shut, open).await;
    })
    .await;
}
