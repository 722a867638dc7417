//! Tests of the subcommands on locks that readers hold.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    time::Duration,
};

use futures_util::future::join_all;
use lock_runtime::{Lock, LockClient, LockGuard, LossReason};
use serde_json::Value;
use support::{
    cluster::shared_cluster,
    sentinels::shared_group,
    server::{RedisServer, shared_server},
    stores::until_waiting,
};
use tokio::task::JoinHandle;

use crate::tool::{Running, key, lockctl, output};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Returns two clients with a namespace that no other test uses, and this namespace.
async fn clients(url: &str) -> ([LockClient; 2], String) {
    let namespace = key();
    let builder = || LockClient::builder().url(url).namespace(&namespace);
    let one = builder().connect().await.unwrap();
    ([one, builder().connect().await.unwrap()], namespace)
}

fn lock(client: &LockClient, key: &str) -> Lock {
    client.lock(key).wait(MINUTE).lease(MINUTE)
}

async fn read(client: &LockClient, key: &str) -> LockGuard {
    lock(client, key).read().acquire().await.unwrap()
}

/// Begins to write. The writer waits while readers hold the lock.
async fn begin_to_write(client: &LockClient, key: &str) -> JoinHandle<LockGuard> {
    let writing = lock(client, key).acquire();
    let writing = tokio::spawn(async move { writing.await.unwrap() });
    until_waiting(client, key, 1).await;
    writing
}

/// The queue of the lock `{order:7}:pay` has a name that could be the name of a lock, and is a sorted set as readers are.
#[tokio::test(flavor = "multi_thread")]
async fn every_topology_lists_locks_that_readers_hold() {
    let urls = [
        shared_server().await.url(),
        shared_group().await.url(),
        shared_cluster().await.url(),
    ];
    for url in &urls {
        let ([one, two], namespace) = clients(url).await;
        let tool = |words: &[&str]| {
            let words = [&["-n", &namespace], words].concat();
            output(url, &words).with_code(0)
        };
        let first = read(&one, "report").await;
        let _others = [read(&two, "report").await, read(&two, "report").await];
        let _tagged = read(&one, "{order:7}:pay").await;
        let _written = lock(&one, "written").acquire().await.unwrap();
        let writing = [
            begin_to_write(&two, "{order:7}:pay").await,
            begin_to_write(&two, "written").await,
        ];
        let mut listed = tool(&["list", "-o", "jsonl"]).lines();
        listed.sort_by_key(|lock| lock["key"].to_string());
        let seen: Vec<_> = listed
            .iter()
            .map(|lock| {
                let word = |name: &str| lock[name].as_str().unwrap();
                let number = |name: &str| lock[name].as_u64().unwrap();
                (
                    (word("key"), word("mode"), word("state")),
                    (number("readers"), number("waiting")),
                )
            })
            .collect();
        let expected = [
            (("report", "read", "held"), (3, 0)),
            (("written", "write", "held"), (0, 1)),
            (("{order:7}:pay", "read", "held"), (1, 1)),
        ];
        assert_eq!(seen, expected, "{url}");
        assert_eq!(listed[0]["token"], first.token().get());
        assert_eq!(listed[0]["caller"]["pid"], std::process::id());
        let table = tool(&["list", "report"]).stdout;
        let line = table.lines().nth(1).unwrap();
        assert!(line.starts_with("report  read by 3  "), "{table}");
        assert!(line.ends_with(&first.token().to_string()), "{table}");
        writing.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_lists_the_first_readers() {
    let url = shared_server().await.url();
    let ([client, other], namespace) = clients(&url).await;
    let mut guards = Vec::new();
    for _ in 0..23 {
        guards.push(read(&client, "k").await);
    }
    let inspect = |words: &[&str]| {
        let words = [&["-n", &namespace, "inspect", "k"], words].concat();
        output(&url, &words).with_code(0)
    };
    let seen = inspect(&["-o", "json"]).json();
    assert_eq!(
        (&seen["holder"]["mode"], &seen["holder"]["readers"]),
        (&"read".into(), &23.into()),
        "{seen}"
    );
    let readers = seen["shared_by"].as_array().unwrap();
    let tokens: Vec<_> = readers
        .iter()
        .map(|reader| reader["token"].as_u64().unwrap())
        .collect();
    let expected: Vec<_> = guards.iter().map(|guard| guard.token().get()).collect();
    assert_eq!(tokens, expected, "{seen}");
    for reader in readers {
        let left = reader["lease_left_ms"].as_u64().unwrap();
        assert!((30_000..=60_000).contains(&left), "{seen}");
        assert_eq!(reader["caller"]["pid"], std::process::id(), "{seen}");
        assert_eq!(reader["state"], "held", "{seen}");
    }

    let writing = begin_to_write(&other, "k").await;
    let text = inspect(&[]).stdout;
    let (head, rest) = text.split_once("\n\n").unwrap();
    assert_eq!(head, "key         k\nstate       read by 23\nwaiting     1");
    let (shown, queue) = rest.split_once("\n\n").unwrap();
    let shown: Vec<_> = shown.lines().collect();
    assert_eq!(shown.len(), 22, "{text}");
    assert!(shown[0].starts_with("TOKEN ") && shown[0].contains(" HOLDER "));
    for (line, reader) in shown[1..21].iter().zip(readers) {
        assert!(line.starts_with(&reader["token"].to_string()), "{text}");
        assert!(line.ends_with(reader["owner"].as_str().unwrap()), "{text}");
        let pid = format!("(pid {})", std::process::id());
        assert!(line.contains(&pid), "{text}");
    }
    assert_eq!(shown[21], "and 3 more");
    assert!(queue.starts_with("#  WAITER"), "{text}");
    writing.abort();

    // A lock that a writer holds has no readers.
    let written = lock(&client, "written").acquire().await.unwrap();
    let words = ["-n", &namespace, "inspect", "written"];
    let seen = output(&url, &[&words[..], &["-o", "json"]].concat()).json();
    assert_eq!(
        (&seen["holder"]["mode"], &seen["shared_by"]),
        (&"write".into(), &Value::Array(Vec::new())),
        "{seen}"
    );
    let text = output(&url, &words).stdout;
    let shape: Vec<_> = text
        .lines()
        .map(|line| line.split("  ").next().unwrap())
        .collect();
    assert_eq!(
        shape,
        [
            "key",
            "state",
            "holder",
            "held for",
            "token",
            "lease left",
            "owner",
            "waiting"
        ]
    );
    assert!(text.contains("\nstate       held\n"), "{text}");
    written.release().await;
}

/// A lock is kept when the holds of all its readers have ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_reader_is_told_from_one_at_work() {
    let url = shared_server().await.url();
    let ([client, _], namespace) = clients(&url).await;
    let kept = lock(&client, "k").read().hold_at_least(MINUTE);
    let kept = kept.acquire().await.unwrap();
    let at_work = read(&client, "k").await;
    kept.release().await;
    let tool = |words: &[&str]| {
        let words = [&["-n", &namespace], words].concat();
        output(&url, &words).with_code(0)
    };
    let listed = tool(&["list", "-o", "json"]).json();
    assert_eq!(
        (&listed[0]["state"], &listed[0]["readers"]),
        (&"held".into(), &2.into()),
        "{listed}"
    );
    let shown = tool(&["inspect", "k"]).stdout;
    assert!(shown.contains("\nstate       read by 2\n"), "{shown}");
    assert_eq!(shown.matches("  kept after ").count(), 1, "{shown}");
    at_work.release().await;
    let listed = tool(&["list", "-o", "json"]).json();
    assert_eq!(listed[0]["state"], "kept", "{listed}");
    let shown = tool(&["inspect", "k"]).stdout;
    assert!(shown.contains("\nstate       kept (the hold"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_listed_reader_can_be_released_by_its_token() {
    let url = shared_server().await.url();
    let ([one, two], namespace) = clients(&url).await;
    let renewed = |client: &LockClient| client.lock("k").read().lease(3 * SECOND).renew(true);
    let mut guards = Vec::new();
    for client in [&one, &two, &one, &two] {
        guards.push(renewed(client).acquire().await.unwrap());
    }
    let writing = begin_to_write(&two, "k").await;
    let tool = |words: &[&str]| output(&url, &[&["-n", &namespace], words].concat());
    let release = |words: &[&str]| {
        let words = [&["release", "k", "--force", "--yes"], words].concat();
        tool(&words)
    };

    // Several readers hold the lock, so the tool does not choose one.
    let refused = release(&[]).with_code(2);
    assert!(refused.stderr.contains("held by 4 callers"), "{refused:?}");
    let unknown = (guards[0].token().get() - 1).to_string();
    let refused = release(&["--token", &unknown]).with_code(1);
    assert!(
        refused.stderr.contains("nothing was changed"),
        "{refused:?}"
    );

    let seen = tool(&["inspect", "k", "-o", "json"]).with_code(0).json();
    let listed = seen["shared_by"].as_array().unwrap();
    let tokens: Vec<_> = listed
        .iter()
        .map(|reader| reader["token"].to_string())
        .collect();
    assert_eq!(tokens.len(), 4, "{seen}");
    // A reader in the middle, the last one and the first one.
    for (place, left) in [(2, 3), (3, 2), (0, 1)] {
        let token = &tokens[place];
        let released = release(&["--token", token]).with_code(0);
        let text = format!("token {token} has ended");
        assert!(released.stdout.contains(&text), "{released:?}");
        let text = format!("; the lock is still read by {left}\n");
        assert!(released.stdout.ends_with(&text), "{released:?}");
        assert!(released.stderr.contains("lock released by force"));
        assert_eq!(guards[place].lost().await, LossReason::NotHeld);
        release(&["--token", token]).with_code(1);
    }
    assert_eq!(guards[1].loss(), None);
    assert!(!writing.is_finished());
    // The only reader needs no token.
    let json = release(&["-o", "json"]).with_code(0).json();
    assert_eq!(json["token"], guards[1].token().get(), "{json}");
    writing.await.unwrap().release().await;
    assert_eq!(guards[1].lost().await, LossReason::NotHeld);
}

/// Readers of one process that have queued together share a grant, and count as one reader.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_share_a_grant_are_released_together() {
    let url = shared_server().await.url();
    let ([one, two], namespace) = clients(&url).await;
    let writer = lock(&two, "k").acquire().await.unwrap();
    let renewed = one
        .lock("k")
        .read()
        .wait(MINUTE)
        .lease(3 * SECOND)
        .renew(true);
    let reading: Vec<_> = (0..5).map(|_| tokio::spawn(renewed.acquire())).collect();
    until_waiting(&two, "k", 5).await;
    writer.release().await;
    let guards: Vec<_> = join_all(reading)
        .await
        .into_iter()
        .map(|guard| guard.unwrap().unwrap())
        .collect();
    let tool = |words: &[&str]| output(&url, &[&["-n", &namespace], words].concat()).with_code(0);
    let seen = tool(&["inspect", "k", "-o", "json"]).json();
    assert_eq!(seen["holder"]["readers"], 1, "{seen}");
    let token = seen["shared_by"][0]["token"].to_string();
    tool(&["release", "k", "--force", "--yes", "--token", &token]);
    for guard in guards {
        assert_eq!(guard.lost().await, LossReason::NotHeld);
    }
    output(&url, &["-n", &namespace, "inspect", "k"]).with_code(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_tells_no_pass_from_reader_to_reader() {
    let server = RedisServer::start().await;
    let url = server.url();
    let ([one, two], namespace) = clients(&url).await;
    let before = ["-n", &namespace, "watch"];
    let words = [&before[..], &["--interval", "20ms", "-o", "jsonl"]].concat();
    let first = read(&one, "k").await;
    let mut watching = Running::start(lockctl(&url, &words));
    let mut next = || {
        let line: Value = serde_json::from_str(&watching.line()).unwrap();
        let word = |name: &str| line[name].as_str().unwrap().to_owned();
        let number = |name: &str| line[name].as_u64().unwrap();
        (
            word("change"),
            word("mode"),
            number("readers"),
            number("waiting"),
        )
    };
    let seen = |change: &str, mode: &str, readers, waiting| {
        (change.to_owned(), mode.to_owned(), readers, waiting)
    };
    // Waits until `watch` has looked at the server again, so that it has seen the present readers.
    let looks = async || {
        let scans = async || server.costs().await["scan"].calls;
        let now = scans().await;
        support::until(async || scans().await >= now + 2).await;
    };
    assert_eq!(next(), seen("held", "read", 1, 0));
    let second = read(&two, "k").await;
    looks().await;
    first.release().await;
    looks().await;
    let third = read(&one, "k").await;
    looks().await;
    let writing = begin_to_write(&two, "k").await;
    assert_eq!(next(), seen("waiting", "read", 2, 1));
    let text = output(&url, &[&before[..], &["--looks", "1"]].concat());
    let line = format!(
        " held     k mode=read readers=2 token={} waiting=1 holder=",
        second.token()
    );
    assert!(text.with_code(0).stdout.contains(&line));
    third.release().await;
    second.release().await;
    let writer = writing.await.unwrap();
    assert_eq!(next(), seen("passed", "write", 0, 0));
    let reading = tokio::spawn(lock(&one, "k").read().acquire());
    until_waiting(&two, "k", 1).await;
    assert_eq!(next(), seen("waiting", "write", 0, 1));
    writer.release().await;
    let last = reading.await.unwrap().unwrap();
    assert_eq!(next(), seen("passed", "read", 1, 0));
    last.release().await;
    assert_eq!(next(), seen("released", "read", 1, 0));
}

/// `run` says how many readers keep it waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_for_readers_is_told() {
    let url = shared_server().await.url();
    let ([one, two], namespace) = clients(&url).await;
    let readers = [read(&one, "k").await, read(&two, "k").await];
    let words = ["-n", &namespace, "run", "-k", "k", "-w", "1m", "--", "true"];
    let mut command = lockctl(&url, &words);
    command.stderr(Stdio::piped());
    let mut waiting = Running::start(command);
    let mut errors = BufReader::new(waiting.child.stderr.take().unwrap());
    let mut told = String::new();
    errors.read_line(&mut told).unwrap();
    assert!(told.contains(" s: held by "), "{told}");
    assert!(told.ends_with(" (read by 2), 1 waiting\n"), "{told}");
    for reader in readers {
        reader.release().await;
    }
    assert_eq!(waiting.code(), Some(0));
}
