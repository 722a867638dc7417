//! Starts servers on free ports of this machine, to try the locks on them: a Redis Cluster, or a primary with replicas
//! and Sentinels. The example needs `redis-server`. The servers end with this program.
//!
//! ```text
//! cargo run --example servers -- cluster
//! cargo run --example servers -- sentinel
//! ```

use std::io::{self, BufRead};

use support::{cluster::ClusterServers, sentinels::SentinelGroup, server::RedisServer};

#[tokio::main]
async fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("cluster") => {
            let cluster = ClusterServers::with_replicas(3).await;
            let (primaries, replicas) = cluster.servers.split_at(3);
            list("primaries", primaries);
            list("replicas", replicas);
            until_enter(&cluster.url());
        }
        Some("sentinel") => {
            let group = SentinelGroup::start().await;
            let (primary, replicas) = group.servers.split_at(1);
            list("primary", primary);
            list("replicas", replicas);
            list("Sentinels", &group.sentinels);
            until_enter(&group.url());
        }
        _ => eprintln!("name the servers to start: cluster or sentinel"),
    }
}

fn list(what: &str, servers: &[RedisServer]) {
    println!("{what}:");
    for server in servers {
        println!("  port {}, process {}", server.port(), server.pid());
    }
}

fn until_enter(url: &str) {
    println!(
        "\nTry the locks on these servers in another terminal, and end one of the processes meanwhile:"
    );
    println!("  cargo run --example orders -- --redis {url}");
    println!("\nPress Enter to end the servers.");
    let _ = io::stdin().lock().lines().next();
}
