//! Tests of `lockctl` with invalid arguments and settings, and of its help, completions and manual page.

use support::server::{RedisServer, shared_server};

use crate::tool::{Ran, lockctl, output};

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused_before_anything_is_done() {
    let url = shared_server().await.url();
    for words in [
        &[][..],
        &["frobnicate"],
        &["list", "a", "b"],
        &["list", "--output", "xml"],
        &["list", "line\nbreak"],
        &["inspect"],
        &["inspect", ""],
        &["inspect", "a{b"],
        &["inspect", "k", "--limit", "-1"],
        &["watch", "--interval", "soon"],
        &["run", "--", "true"],
        &["run", "--key", "k"],
        &["run", "--key", "k", "--"],
        &["run", "--key", "k", "--wait", "5", "--", "true"],
        &["run", "--key", "k", "--lease", "1ms", "--", "true"],
        &["run", "--key", "", "--", "true"],
        &["release", "k"],
        &["release", "--force", "--yes"],
        &["completions", "cobol"],
    ] {
        let ran = output(&url, words).with_code(2);
        assert!(!ran.stderr.is_empty(), "{words:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{words:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_used_are_told() {
    let none = lockctl("", &["list"])
        .env_remove("LOCK_URL")
        .output()
        .unwrap();
    Ran::from(none).with_code(78);
    for url in ["http://localhost/", "redis", "memory:x"] {
        let ran = output(url, &["list"]);
        assert!(matches!(ran.code, Some(70 | 78)), "{url}: {ran:?}");
    }
    let evicting = RedisServer::builder()
        .arg("--maxmemory-policy", "allkeys-lru")
        .start()
        .await;
    let ran = output(&evicting.url(), &["list"]).with_code(78);
    assert!(ran.stderr.contains("noeviction"), "{ran:?}");
    let locked = RedisServer::builder()
        .arg("--requirepass", "secret")
        .start()
        .await;
    output(&locked.url(), &["list"]).with_code(77);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_can_be_set_by_the_environment() {
    let url = shared_server().await.url();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lockctl"));
    command.args(["list", "no-such-lock"]).env("LOCK_URL", &url);
    Ran::from(command.output().unwrap()).with_code(0);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lockctl"));
    command
        .args(["run", "-k", "k", "--", "true"])
        .env("LOCK_URL", &url)
        .env("LOCKCTL_READ_ONLY", "1");
    Ran::from(command.output().unwrap()).with_code(77);
    let secret = lockctl("redis://user:secret@127.0.0.1/", &["--help"]);
    let mut command = std::process::Command::new(secret.get_program());
    command
        .arg("--help")
        .env("LOCK_URL", "redis://user:secret@127.0.0.1/");
    let help = Ran::from(command.output().unwrap()).with_code(0);
    assert!(!help.stdout.contains("secret"), "{help:?}");
}

#[test]
fn help_completions_and_manual_name_every_subcommand() {
    let subcommands = [
        "list",
        "inspect",
        "leader",
        "resign",
        "limit",
        "watch",
        "run",
        "release",
        "doctor",
        "completions",
        "man",
    ];
    let words = [
        &["--help"][..],
        &["man"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
    ];
    for words in words {
        let text = output("redis://localhost/", words).with_code(0).stdout;
        for subcommand in subcommands {
            assert!(
                text.contains(subcommand),
                "{words:?} does not name {subcommand}"
            );
        }
        assert!(
            !text.contains("__under"),
            "{words:?} names the hidden subcommand"
        );
    }
    let manual = output("redis://localhost/", &["man"]).stdout;
    for text in ["75", "76", "LOCK_URL", "\\-\\-grace"] {
        assert!(manual.contains(text), "the manual lacks {text}");
    }
}
