//! The subcommand `watch`.

use std::time::Duration;

use lock_runtime::LockClient;
use serde_json::Value;
use support::{server::RedisServer, stores::until_waiting};

use crate::tool::{Running, Terminal, lockctl, output};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_a_line() {
    let server = RedisServer::start().await;
    let url = server.url();
    let [client, other] = [
        LockClient::connect(&url).await.unwrap(),
        LockClient::connect(&url).await.unwrap(),
    ];
    let held = client.lock("a").lease(MINUTE).acquire().await.unwrap();
    let mut watching = Running::start(lockctl(
        &url,
        &["watch", "--interval", "20ms", "-o", "jsonl"],
    ));
    let mut next = || {
        let line: Value = serde_json::from_str(&watching.line()).unwrap();
        let word = |name: &str| line[name].as_str().unwrap().to_owned();
        (
            word("change"),
            word("key"),
            line["token"].as_u64().unwrap(),
            line["waiting"].as_u64().unwrap(),
        )
    };
    let token = held.token().get();
    assert_eq!(next(), ("held".into(), "a".into(), token, 0));
    let waiting = tokio::spawn(other.lock("a").wait(MINUTE).acquire());
    until_waiting(&client, "a", 1).await;
    assert_eq!(next(), ("waiting".into(), "a".into(), token, 1));
    held.release().await;
    let passed = waiting.await.unwrap().unwrap();
    assert_eq!(
        next(),
        ("passed".into(), "a".into(), passed.token().get(), 0)
    );
    let b = client.lock("b").acquire().await.unwrap();
    assert_eq!(next(), ("acquired".into(), "b".into(), b.token().get(), 0));
    passed.release().await;
    assert_eq!(next().0, "released");
    // The reader closes the output, and the tool ends at its next look, although no lock changes.
    watching.close_output();
    let code = tokio::task::spawn_blocking(move || watching.code());
    assert_eq!(code.await.unwrap(), Some(0));
    let text = output(&url, &["watch", "--looks", "1"]).with_code(0).stdout;
    assert!(
        text.contains(&format!(
            " held     b token={} waiting=0 holder=",
            b.token()
        )),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_is_watched_again() {
    let mut server = RedisServer::builder().aof_always().start().await;
    let url = server.url();
    let client = LockClient::connect(&url).await.unwrap();
    let _held = client.lock("a").lease(MINUTE).acquire().await.unwrap();
    let words = [
        "--patience",
        "300ms",
        "watch",
        "--interval",
        "20ms",
        "-o",
        "jsonl",
    ];
    let mut watching = Running::start(lockctl(&url, &words));
    assert!(watching.line().contains("\"held\""));
    server.kill();
    // The outage is longer than the time that a single look waits for the server.
    tokio::time::sleep(Duration::from_millis(600)).await;
    server.restart().await;
    let b = client.lock("b").wait(MINUTE).acquire().await.unwrap();
    let line = watching.line();
    assert!(
        line.contains("\"acquired\"") && line.contains(&b.token().to_string()),
        "{line}"
    );
}

/// On a terminal, `watch` draws the table again at each look.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_a_table() {
    let server = RedisServer::start().await;
    let url = server.url();
    let client = LockClient::connect(&url).await.unwrap();
    let held = client.lock("order:42").acquire().await.unwrap();
    let script = r#""$LOCKCTL" watch --looks 2 --interval 10ms; echo "code $?""#;
    let (_, text) = Terminal::new().run(&url, script, &[]);
    assert_eq!(text.matches("order:42").count(), 2, "{text}");
    assert_eq!(text.matches("1 held").count(), 2, "{text}");
    assert!(
        text.contains(&held.token().to_string()) && text.contains("code 0"),
        "{text}"
    );
}

/// When the terminal becomes larger, the table shows more locks.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_follows_the_size_of_the_terminal() {
    let server = RedisServer::start().await;
    let url = server.url();
    let client = LockClient::connect(&url).await.unwrap();
    let mut held = Vec::new();
    for number in 0..20 {
        let lock = client.lock(format!("k{number}")).lease(MINUTE);
        held.push(lock.acquire().await.unwrap());
    }
    let script = r#"
        stty rows 12 cols 150
        "$LOCKCTL" watch --interval 50ms --looks 60 &
        # A look at so few locks sends one SCAN, and the next look follows when the table is drawn.
        until redis-cli -u "$LOCK_URL" info commandstats | grep -q 'cmdstat_scan:calls=[2-9]'; do :; done
        stty rows 40; wait
    "#;
    let (_, text) = Terminal::new().run(&url, script, &[]);
    let small = text.find("20 held, 12 of them not shown");
    let small = small.unwrap_or_else(|| panic!("{text}"));
    let last = text.rfind("20 held").unwrap();
    assert!(small < last, "{text}");
    assert!(!text[last..].contains("not shown"), "{text}");
}
