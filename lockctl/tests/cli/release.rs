//! Tests of the subcommand `release` with the option `--force`.

use std::time::Duration;

use lock_runtime::{LockClient, LossReason};
use support::{server::shared_server, stores::until_waiting};

use crate::tool::{Terminal, key, output};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_is_told_and_the_next_has_a_higher_token() {
    let url = shared_server().await.url();
    let client = LockClient::connect(&url).await.unwrap();
    let key = key();
    let held = client
        .lock(&key)
        .lease(3 * SECOND)
        .renew(true)
        .acquire()
        .await
        .unwrap();
    let next = LockClient::connect(&url).await.unwrap();
    let next = tokio::spawn(next.lock(&key).wait(20 * SECOND).acquire());
    until_waiting(&client, &key, 1).await;

    // Without a terminal and without `--yes`, nobody can confirm the release, so `lockctl` refuses it.
    let refused = output(&url, &["release", &key, "--force"]).with_code(2);
    assert!(refused.stderr.contains("--yes"), "{refused:?}");
    output(&url, &["release", &key, "--yes"]).with_code(2);
    output(&url, &["--read-only", "release", &key, "--force", "--yes"]).with_code(77);
    let other = (held.token().get() - 1).to_string();
    let other = ["release", &key, "--force", "--yes", "--token", &other];
    output(&url, &other).with_code(1);
    assert_eq!(held.loss(), None);
    assert!(!next.is_finished());

    let token = held.token().to_string();
    let released = output(
        &url,
        &[
            "release", &key, "--force", "--yes", "--by", "alice", "--token", &token, "-o", "json",
        ],
    )
    .with_code(0);
    let json = released.json();
    assert_eq!(
        (&json["released"], &json["by"]),
        (&true.into(), &"alice".into())
    );
    assert_eq!(json["token"], held.token().get());
    let log = &released.stderr;
    assert!(
        log.contains("WARN")
            && log.contains("lock released by force")
            && log.contains("alice")
            && log.contains(&key),
        "{log}"
    );
    let next = next.await.unwrap().unwrap();
    assert!(next.token() > held.token());
    let reason = tokio::time::timeout(2 * SECOND, held.lost()).await.unwrap();
    assert_eq!(reason, LossReason::NotHeld);
    next.release().await;
    let none = output(&url, &["release", &key, "--force", "--yes"]).with_code(1);
    assert_eq!(none.stdout, format!("nobody holds `{key}`\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_the_user_and_the_host() {
    let url = shared_server().await.url();
    let client = LockClient::connect(&url).await.unwrap();
    let key = key();
    let _held = client.lock(&key).acquire().await.unwrap();
    let json = output(&url, &["release", &key, "--force", "--yes", "-o", "json"])
        .with_code(0)
        .json();
    let by = json["by"].as_str().unwrap();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(
        by.contains(&format!("@{} (lockctl, pid ", host.trim())),
        "{by}"
    );
}

/// On a terminal, the tool asks the user to type the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_at_a_terminal_types_the_key() {
    let url = shared_server().await.url();
    let client = LockClient::connect(&url).await.unwrap();
    let key = key();
    let held = client.lock(&key).acquire().await.unwrap();
    let script = format!(r#"touch "$READY"; "$LOCKCTL" release {key} --force; echo "code $?""#);
    let (_, text) = Terminal::new().run(&url, &script, &["another\n"]);
    assert!(
        text.contains("Type the key") && text.contains("code 2"),
        "{text}"
    );
    assert!(client.lock(&key).status().await.unwrap().holder.is_some());
    let (_, text) = Terminal::new().run(&url, &script, &[&format!("{key}\n")]);
    assert!(
        text.contains("released") && text.contains("code 0"),
        "{text}"
    );
    assert!(client.lock(&key).status().await.unwrap().holder.is_none());
    drop(held);
}
