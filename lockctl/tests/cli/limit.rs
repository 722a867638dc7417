//! Tests of the subcommand `limit`, and of how semaphores are shown.

use std::time::Duration;

use lock_runtime::LockClient;
use support::server::shared_server;

use crate::tool::{key, output};

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_set_shown_and_removed() {
    let url = shared_server().await.url();
    let namespace = key();
    let client = LockClient::builder().url(&url).namespace(&namespace);
    let client = client.connect().await.unwrap();
    let lockctl = |words: &[&str]| output(&url, &[&["-n", &namespace], words].concat());
    lockctl(&["limit", "smtp"]).with_code(1);
    let smtp = client.semaphore("smtp", 3).lease(Duration::from_secs(60));
    let two = smtp.acquire_many(2).await.unwrap();
    let set = lockctl(&["limit", "smtp", "2"]).with_code(0);
    assert!(set.stdout.contains("2 permits"), "{set:?}");
    assert!(smtp.try_acquire().await.is_err());
    let refused = lockctl(&["--read-only", "limit", "smtp", "9"]).with_code(77);
    assert!(refused.stderr.contains("--read-only"), "{refused:?}");
    let shown = lockctl(&["--read-only", "limit", "smtp", "-o", "json"]).with_code(0);
    assert_eq!(shown.json()["limit"], 2);
    lockctl(&["limit", "smtp", "1001"]).with_code(2);

    let listed = lockctl(&["list", "-o", "json"]).with_code(0).json();
    assert_eq!(
        (&listed[0]["mode"], &listed[0]["permits"]),
        (&"permits".into(), &2.into())
    );
    let text = lockctl(&["list"]).with_code(0).stdout;
    assert!(text.contains("2 permits"), "{text}");
    let seen = lockctl(&["inspect", "permits:smtp", "-o", "json"])
        .with_code(0)
        .json();
    assert_eq!(seen["permits_limit"], 2, "{seen}");
    assert_eq!(seen["shared_by"][0]["permits"], 2, "{seen}");
    let text = lockctl(&["inspect", "permits:smtp"]).with_code(0).stdout;
    assert!(text.contains("set by an operator"), "{text}");

    lockctl(&["limit", "permits:smtp", "--clear"]).with_code(0); // the key, as `list` shows it
    lockctl(&["limit", "smtp"]).with_code(1);
    smtp.try_acquire().await.unwrap().release().await;
    two.release().await;
}
