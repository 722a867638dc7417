//! Tests of the subcommands `list` and `inspect`.

use std::{process::Stdio, time::Duration};

use lock_runtime::{Layout, LockClient};
use redis::cmd;
use support::{
    cluster::shared_cluster,
    quorum::Quorum,
    sentinels::shared_group,
    server::{RedisServer, ask, shared_server},
    stores::until_waiting,
};

use crate::tool::{Ran, key, lockctl, output};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a client with a namespace that no other test uses, and this namespace.
async fn client(url: &str) -> (LockClient, String) {
    let namespace = key();
    let client = LockClient::builder().url(url).namespace(&namespace);
    (client.connect().await.unwrap(), namespace)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_topology_lists_and_inspects_its_locks() {
    let quorum = Quorum::start(3).await.in_use().await;
    let nodes = quorum.url();
    let urls = [
        shared_server().await.url(),
        shared_server().await.unix_url(),
        shared_group().await.url(),
        shared_cluster().await.url(),
        nodes.clone(),
    ];
    for url in &urls {
        let (client, namespace) = client(url).await;
        let guard = client
            .lock("order:42")
            .lease(MINUTE)
            .acquire()
            .await
            .unwrap();
        let tagged = client.lock("{order:7}:pay").acquire().await.unwrap();
        let listed = output(url, &["-n", &namespace, "list", "-o", "json"])
            .with_code(0)
            .json();
        let mut keys: Vec<_> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|lock| lock["key"].as_str().unwrap())
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, ["order:42", "{order:7}:pay"], "{url}");
        let seen = output(
            url,
            &["-n", &namespace, "inspect", "order:42", "-o", "json"],
        )
        .with_code(0)
        .json();
        assert_eq!(
            seen["holder"]["token"],
            guard.token().get(),
            "{url}: {seen}"
        );
        let left = seen["holder"]["lease_left_ms"].as_u64().unwrap();
        assert!((30_000..=60_000).contains(&left), "{url}: {left}");
        guard.release().await;
        tagged.release().await;
        output(url, &["-n", &namespace, "inspect", "order:42"]).with_code(1);
    }
    // If several URLs are given, each of them names one server of a Redlock.
    let urls: Vec<_> = nodes
        .trim_start_matches("redlock://")
        .split(',')
        .map(|node| format!("redis://{node}"))
        .collect();
    let client = LockClient::connect(&nodes).await.unwrap();
    let _guard = client.lock("k").acquire().await.unwrap();
    let words = ["--url", &urls[1], "--url", &urls[2], "list", "-o", "json"];
    let listed = output(&urls[0], &words).with_code(0).json();
    assert_eq!(listed[0]["key"], "k", "{listed}");
}

/// A lock that `hold_at_least` keeps taken after its hold has ended does not look like the lock of a running job.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_lock_is_told_from_a_held_one() {
    let quorum = Quorum::start(3).await.in_use().await;
    let server = shared_server().await.url();
    for (url, layout, name) in [
        (server.clone(), Layout::Native, "native"),
        (quorum.url(), Layout::Native, "native"),
        (server, Layout::Redisson, "redisson"),
    ] {
        let namespace = key();
        let client = LockClient::builder().url(&url).namespace(&namespace);
        let client = client.layout(layout).connect().await.unwrap();
        let job = client.lock("job").lease(MINUTE).hold_at_least(MINUTE);
        let guard = job.acquire().await.unwrap();
        let tool = |words: &[&str]| {
            let before = ["-n", &namespace, "--layout", name];
            output(&url, &[&before, words].concat()).with_code(0)
        };
        let listed = tool(&["list", "-o", "json"]).json();
        assert_eq!(listed[0]["state"], "held", "{url}: {listed}");
        guard.release().await;
        let listed = tool(&["list", "-o", "json"]).json();
        assert_eq!(listed[0]["state"], "kept", "{url}: {listed}");
        let left = listed[0]["lease_left_ms"].as_u64().unwrap();
        assert!((30_000..=60_000).contains(&left), "{url}: {listed}");
        let shown = tool(&["inspect", "job"]).stdout;
        assert!(shown.contains("\nstate       kept (the hold"), "{shown}");
        let watched = tool(&["watch", "--looks", "1"]).stdout;
        assert!(watched.contains(" kept     job "), "{watched}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_formats_have_the_same_locks() {
    let url = shared_server().await.url();
    let (client, namespace) = client(&url).await;
    let list = |words: &[&str]| {
        let words = [&["-n", &namespace, "list"], words].concat();
        output(&url, &words).with_code(0)
    };
    assert_eq!(list(&[]).stdout, "no lock is held\n");
    assert_eq!(
        list(&["a*"]).stdout,
        "no lock is held whose key matches \"a*\"\n"
    );
    assert_eq!(list(&["-o", "json"]).stdout, "[]\n");
    let pattern = output(&url, &["-n", &namespace, "inspect", "a*"]).with_code(1);
    assert!(pattern.stdout.contains("`lockctl list` takes a pattern"));
    let many = output(&url, &["inspect", "a", "--limit", "1001"]).with_code(2);
    assert!(many.stderr.contains("at most 1000"), "{}", many.stderr);
    assert_eq!(list(&["-o", "jsonl"]).stdout, "");
    let a = client.lock("a").lease(MINUTE).acquire().await.unwrap();
    let b = client.lock("b").lease(MINUTE).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("b").wait(MINUTE).acquire());
    until_waiting(&client, "b", 1).await;
    let table = list(&[]).stdout;
    let lines: Vec<&str> = table.lines().collect();
    let titles = lines[0]
        .split("  ")
        .map(str::trim)
        .filter(|title| !title.is_empty());
    assert_eq!(
        titles.collect::<Vec<_>>(),
        [
            "KEY",
            "STATE",
            "HOLDER",
            "HELD FOR",
            "LEASE LEFT",
            "WAITING",
            "TOKEN"
        ]
    );
    let caller = client
        .lock("a")
        .status()
        .await
        .unwrap()
        .holder
        .unwrap()
        .caller;
    let caller = caller.unwrap().to_string();
    for (line, key, waiting, token) in [
        (lines[1], "a", "0", a.token()),
        (lines[2], "b", "1", b.token()),
    ] {
        let ends = format!("  {waiting}        {token}");
        assert!(
            line.starts_with(&format!("{key}    held   {caller}  ")),
            "{table}"
        );
        assert!(line.ends_with(&ends), "{table}");
    }
    assert_eq!(lines.len(), 3);
    let json = list(&["-o", "json"]).json();
    let mut lines = list(&["-o", "jsonl"]).lines();
    assert_eq!(json.as_array().unwrap().len(), 2);
    lines.sort_by_key(|lock| lock["key"].as_str().unwrap().to_owned());
    assert_eq!(lines[1]["waiting"], 1, "{lines:?}");
    assert_eq!(lines[1]["owner"].as_str().unwrap().len(), 32);
    assert_eq!(lines[1]["caller"]["pid"], std::process::id());
    assert!(
        lines[1]["held_for_ms"].as_u64().unwrap() < 60_000,
        "{lines:?}"
    );
    assert_eq!(lines[1]["token"], b.token().get());
    let keys = |words: &[&str]| {
        let mut keys: Vec<_> = list(words)
            .lines()
            .iter()
            .map(|lock| lock["key"].to_string())
            .collect();
        keys.sort();
        keys.concat()
    };
    assert_eq!(keys(&["-o", "jsonl", "b"]), r#""b""#);
    assert_eq!(keys(&["-o", "jsonl", "?"]), r#""a""b""#);
    assert_eq!(keys(&["-o", "jsonl", "*x"]), "");
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_shown_in_its_order() {
    let url = shared_server().await.url();
    let (client, namespace) = client(&url).await;
    let _guard = client.lock("k").lease(MINUTE).acquire().await.unwrap();
    let mut waiting = Vec::new();
    for wait in 1..=3 {
        waiting.push(tokio::spawn(client.lock("k").wait(wait * MINUTE).acquire()));
        until_waiting(&client, "k", waiting.len()).await;
    }
    let inspect = |words: &[&str]| {
        let words = [&["-n", &namespace, "inspect", "k"], words].concat();
        output(&url, &words).with_code(0)
    };
    let seen = inspect(&["-o", "json"]).json();
    assert_eq!(
        (&seen["held"], &seen["waiting"]),
        (&true.into(), &3.into()),
        "{seen}"
    );
    let queue = seen["queue"].as_array().unwrap();
    let minutes: Vec<_> = queue
        .iter()
        .map(|waiter| waiter["gives_up_in_ms"].as_u64().unwrap().div_ceil(60_000))
        .collect();
    assert_eq!(minutes, [1, 2, 3], "{seen}");
    assert_eq!(queue[0]["position"], 1);
    let text = inspect(&["--limit", "2"]).stdout;
    assert!(text.contains("waiting     3\n"), "{text}");
    let queued: Vec<_> = text
        .lines()
        .skip_while(|line| !line.starts_with('#'))
        .collect();
    assert_eq!(queued.len(), 3, "{text}");
    // The holder and the waiters are identified in the same way: by their owner names.
    let owner = seen["holder"]["owner"].as_str().unwrap();
    assert!(text.contains(&format!("owner       {owner}\n")), "{text}");
    assert!(queued[0].ends_with("OWNER"), "{text}");
    for (line, waiter) in queued[1..].iter().zip(queue) {
        assert!(line.ends_with(waiter["owner"].as_str().unwrap()), "{text}");
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// If the program that reads the output ends early, `lockctl` ends too, without an error message.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_is_no_error() {
    let server = RedisServer::start().await;
    store_locks(&server, 3000).await;
    for words in [
        &["list"][..],
        &["list", "-o", "json"],
        &["list", "-o", "jsonl"],
        &["man"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let mut child = lockctl(&server.url(), words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let ran = Ran::from(child.wait_with_output().unwrap()).with_code(0);
        assert_eq!(ran.stderr, "", "{words:?}");
    }
}

/// Stores many grants directly on the server, in the engine's format.
async fn store_locks(server: &RedisServer, count: usize) {
    let mut redis = server.connection().await;
    let mut fill = redis::pipe();
    for number in 0..count {
        fill.cmd("SET")
            .arg(format!("{{lock:order:{number}}}"))
            .arg(format!("{}|3600000|session|{number:032x}", number + 1))
            .arg("PX")
            .arg(3_600_000)
            .ignore();
    }
    let _: () = fill.query_async(&mut redis).await.unwrap();
}

/// Returns how many locks `list` finds, and its peak memory in kB.
async fn measure(server: &RedisServer) -> (usize, u64) {
    let url = server.url();
    let listing = tokio::task::spawn_blocking(move || {
        let script = r#""$0" --url "$1" list -o jsonl; echo "code $?" >&2"#;
        let measured = std::process::Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_lockctl"), &url])
            .output()
            .unwrap();
        let ran = Ran::from(measured).with_code(0);
        assert!(ran.stderr.ends_with("code 0\n"), "{}", ran.stderr);
        ran.stdout.lines().count()
    });
    let count = listing.await.unwrap();
    let url = server.url();
    let peak = tokio::task::spawn_blocking(move || peak_of_list(&url));
    (count, peak.await.unwrap())
}

/// Returns the peak memory of `list`, in kB, as last read from `/proc` while `list` ran.
fn peak_of_list(url: &str) -> u64 {
    let mut child = lockctl(url, &["list", "-o", "jsonl"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(kilobytes) = line.and_then(|line| line.split_whitespace().next()) {
            peak = peak.max(kilobytes.parse().unwrap());
        }
    }
    peak
}

/// A server stores a million keys, of which 10,000 are locks. No command that `list` sends examines many keys, and `list` needs
/// hardly more memory than for 100 locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_million_keys_cost_the_server_little_at_a_time() {
    let server = RedisServer::builder().debug_commands().start().await;
    store_locks(&server, 100).await;
    let (found, memory_of_few) = measure(&server).await;
    assert_eq!(found, 100);
    store_locks(&server, 10_000).await;
    let mut redis = server.connection().await;
    let populate = cmd("DEBUG")
        .arg("POPULATE")
        .arg(990_000)
        .arg("session")
        .arg(100)
        .to_owned();
    let _: () = ask(&mut redis, &populate).await;
    let began = std::time::Instant::now();
    server.reset_stats().await;
    let (found, memory) = measure(&server).await;
    let took = began.elapsed() / 2;
    assert_eq!(found, 10_000);
    let costs = server.costs().await;
    println!(
        "one list took {took:.2?}; peak {memory_of_few} kB for 100 locks, {memory} kB for 10,000; {costs:?}"
    );
    // The time of a step follows from the number of keys that it examines. The time itself is not tested, because on a
    // busy machine it includes the time of other processes. `list` runs twice.
    let keys_per_step = 2 * 1_000_000 / costs["scan"].calls;
    assert!(keys_per_step <= 250, "{costs:?}");
    let per_lock = costs["evalsha"].calls / (2 * 10_000);
    assert_eq!(per_lock, 1, "{costs:?}");
    assert!(
        memory < memory_of_few + 4096,
        "{memory_of_few} kB for 100 locks, {memory} kB for 10,000"
    );
}

/// A lock that a Redisson program on the JVM holds is shown without a caller and without a token. The lock keeps others
/// out, and cannot be released by force.
#[tokio::test(flavor = "multi_thread")]
async fn locks_in_redissons_layout_are_shown() {
    let server = RedisServer::start().await;
    let url = server.url();
    let mut redis = server.connection().await;
    let owner = "8f3b1c1e-1d4c-4a5e-9a52-2b7f6f1b9a10";
    let mut set = cmd("HSET");
    set.arg("job:1").arg(format!("{owner}:33")).arg(1);
    let _: u64 = ask(&mut redis, &set).await;
    let mut expire = cmd("PEXPIRE");
    expire.arg("job:1").arg(60_000);
    let _: u64 = ask(&mut redis, &expire).await;
    let tool = |words: &[&str]| output(&url, &[&["--layout", "redisson"], words].concat());
    let listed = tool(&["list", "job:", "-o", "json"]).with_code(0).json();
    assert_eq!(listed[0]["key"], "job:1");
    assert_eq!(listed[0]["owner"], owner.replace('-', ""));
    assert!(listed[0]["caller"].is_null() && listed[0]["token"].is_null());
    let shown = tool(&["inspect", "job:1"]).with_code(0).stdout;
    assert!(shown.contains("token       none"), "{shown}");
    tool(&["run", "-k", "job:1", "--wait", "0s", "--", "true"]).with_code(75);
    let refused = tool(&["release", "job:1", "--force", "--yes"]).with_code(70);
    assert!(
        refused.stderr.contains("has no fencing token"),
        "{refused:?}"
    );
    let inside = ["run", "-k", "job:2", "--", "sh", "-c", "echo $LOCK_KEY"];
    assert_eq!(tool(&inside).with_code(0).stdout, "job:2\n");
}
