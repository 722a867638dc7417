//! Starts servers on free ports of this machine, so that you can try the locks on them: a Redis Cluster, or a primary
//! with replicas and Sentinels. Also starts a single server, which holds the stock of the example `flash_sale`. The
//! example needs `redis-server`. The servers end with this program.
//!
//! ```text
//! cargo run --example servers -- cluster
//! cargo run --example servers -- sentinel
//! ```

use std::io::{self, BufRead};

use support::{cluster::ClusterServers, sentinels::SentinelGroup, server::RedisServer};

#[tokio::main]
async fn main() {
    let database = RedisServer::start().await;
    match std::env::args().nth(1).as_deref() {
        Some("cluster") => {
            let mut cluster = ClusterServers::with_replicas(3).await;
            let (primaries, replicas) = cluster.servers.split_at(3);
            list("primaries", primaries);
            list("replicas", replicas);
            explain(&cluster.url(), &database.url());
            obey(&mut cluster.servers).await;
        }
        Some("sentinel") => {
            let mut group = SentinelGroup::start().await;
            group.be_patient().await;
            let (primary, replicas) = group.servers.split_at(1);
            list("primary", primary);
            list("replicas", replicas);
            list("Sentinels", &group.sentinels);
            explain(&group.url(), &database.url());
            obey(&mut group.servers).await;
        }
        _ => eprintln!("the argument names the servers to start: cluster or sentinel"),
    }
}

fn list(what: &str, servers: &[RedisServer]) {
    println!("{what}:");
    for server in servers {
        println!("  port {}, process {}", server.port(), server.pid());
    }
}

fn explain(url: &str, database: &str) {
    println!("\nTry the locks on these servers in another terminal, and kill a primary meanwhile:");
    println!("  cargo run --example orders -- --redis {url}");
    println!(
        "  cargo run --release --example flash_sale -- --processes 4 --stock 200 --think 50 --redis {url} --database {database}"
    );
    println!(
        "\nType the port of a primary or a replica to kill it (SIGKILL), and once more to start it again."
    );
    println!("Press Enter alone to end the servers.");
}

/// Reads ports that the user types, and kills or restarts the server with this port. Returns at an empty line.
async fn obey(servers: &mut [RedisServer]) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if line.trim().is_empty() {
            return;
        }
        let named = |server: &&mut RedisServer| line.trim() == server.port().to_string();
        match servers.iter_mut().find(named) {
            Some(server) if server.pid() != 0 => {
                server.kill();
                println!("killed port {}", server.port());
            }
            Some(server) => {
                server.restart().await;
                println!("started port {}", server.port());
            }
            None => println!("no primary or replica has the port `{}`", line.trim()),
        }
    }
}
