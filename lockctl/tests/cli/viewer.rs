//! Tests of the option `--read-only`, with a Redis user who is only allowed to read.

use lock_runtime::LockClient;
use redis::cmd;
use support::server::{RedisServer, ask};

use crate::{
    serve::{ask as ask_page, serve},
    tool::output,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_lists_and_inspects_and_the_server_refuses_the_rest() {
    let server = RedisServer::start().await;
    let guide = std::fs::read_to_string(support::root().join("docs/guides/lockctl.md")).unwrap();
    let line = guide
        .lines()
        .find(|line| line.starts_with("ACL SETUSER viewer"))
        .unwrap();
    let words: Vec<_> = line.split(' ').collect();
    let mut redis = server.connection().await;
    let _: () = ask(&mut redis, cmd(words[0]).arg(&words[1..])).await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let held = client.lock("order:42").acquire().await.unwrap();
    let read = client.lock("report").read().acquire().await.unwrap();

    let url = server.url().replace("redis://", "redis://viewer:secret@");
    let listed = output(&url, &["--read-only", "list", "order:", "-o", "json"])
        .with_code(0)
        .json();
    assert_eq!(listed[0]["token"], held.token().get());
    output(&url, &["--read-only", "inspect", "order:42"]).with_code(0);
    let shown = output(&url, &["--read-only", "inspect", "report"]).with_code(0);
    assert!(
        shown.stdout.contains(&read.token().to_string()),
        "{shown:?}"
    );
    output(
        &url,
        &["--read-only", "watch", "--looks", "2", "--interval", "10ms"],
    )
    .with_code(0);
    let (_page, address) = serve(&url, &["--read-only"]);
    let host = format!("Host: {address}\r\n");
    for path in ["/?format=json", "/lock?key=order:42&format=json"] {
        let answer = ask_page(&address, path, &host);
        assert!(
            answer.contains(r#""complete":true"#) && answer.contains(r#""trouble":null"#),
            "{answer}"
        );
        assert!(answer.contains(&held.token().to_string()), "{answer}");
    }
    let release = ["release", "order:42", "--force", "--yes"];
    let run = ["run", "-k", "free", "--", "echo", "run"];
    for words in [&release[..], &run] {
        // With `--read-only`, the tool refuses the subcommand.
        let ran = output(&url, &[&["--read-only"], words].concat()).with_code(77);
        assert!(ran.stderr.contains("--read-only"), "{ran:?}");
        // Without `--read-only`, the subcommand sends a command, and the server refuses it.
        let ran = output(&url, words).with_code(77);
        assert!(ran.stderr.contains("ACL SETUSER"), "{ran:?}");
        assert_eq!(ran.stdout, "");
    }
    assert_eq!(held.loss(), None);
    assert_eq!(read.loss(), None);
    let keys = ["lock:fence", "{lock:order:42}", "{lock:report}"];
    assert_eq!(server.keys().await, keys);
}
