//! Tests of the subcommands `leader` and `resign`.

use std::time::Duration;

use lock_runtime::{LockClient, Term};
use support::server::shared_server;
use tokio::sync::mpsc;

use crate::tool::{key, output};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_is_shown_and_asked_to_resign() {
    let url = shared_server().await.url();
    let namespace = key();
    let client = LockClient::builder().url(&url).namespace(&namespace);
    let client = client.connect().await.unwrap();
    output(&url, &["-n", &namespace, "leader", "scheduler"]).with_code(1);
    output(&url, &["-n", &namespace, "resign", "scheduler"]).with_code(1);
    let leader = client
        .leader("scheduler")
        .label("jobs")
        .lease(Duration::from_secs(1));
    let (begins, mut terms) = mpsc::unbounded_channel::<Term>();
    let running = tokio::spawn(leader.run(move |term| {
        let _ = begins.send(term);
        std::future::pending::<()>()
    }));
    let first = terms.recv().await.unwrap();
    let seen = output(
        &url,
        &["-n", &namespace, "leader", "scheduler", "-o", "json"],
    );
    let seen = seen.with_code(0).json();
    assert_eq!(seen["holder"]["token"], first.token().get(), "{seen}");
    let asked = output(&url, &["-n", &namespace, "resign", "scheduler"]).with_code(0);
    assert!(asked.stdout.contains("jobs"), "{asked:?}");
    // The only candidate leads again.
    let second = terms.recv().await.unwrap();
    assert!(second.token() > first.token());
    assert_eq!(first.loss(), None);
    running.abort();
}
