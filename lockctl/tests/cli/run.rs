//! Tests of the subcommand `run`: of the lock, the command, its signals and the exit codes.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use lock_runtime::{FencingToken, ForcedRelease, LockClient};
use redis::cmd;
use support::{
    proxy::FaultProxy,
    server::{RedisServer, ask, free_port, shared_server},
    stores::until_waiting,
};

use crate::tool::{Ran, Running, Terminal, is_alive, is_stopped, key, lockctl, output, until};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// The user who owns no files.
const NOBODY: u32 = 65534;

async fn connected() -> (LockClient, String) {
    let url = shared_server().await.url();
    (LockClient::connect(&url).await.unwrap(), url)
}

/// Starts `lockctl run` with a shell script.
fn start(url: &str, key: &str, options: &[&str], script: &str) -> Running {
    let words = [&["run", "--key", key], options, &["--", "sh", "-c", script]].concat();
    Running::start(lockctl(url, &words))
}

async fn is_free(client: &LockClient, key: &str) -> bool {
    client.lock(key).status().await.unwrap().holder.is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_holds_the_lock_and_its_code_is_returned() {
    let (client, url) = connected().await;
    let key = key();
    let mut run = start(
        &url,
        &key,
        &[],
        r#"echo "$LOCK_KEY $LOCK_TOKEN"; read line; exit 5"#,
    );
    drop(run.child.stdin.take());
    let line = run.line();
    let ran = run.code();
    assert_eq!(ran, Some(5));
    assert!(is_free(&client, &key).await);
    let (seen, token) = line.split_once(' ').unwrap();
    assert_eq!(seen, key);
    let guard = client.lock(&key).try_acquire().await.unwrap();
    assert!(guard.token().get() > token.parse().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_lock_is_told_with_its_holder() {
    let (client, url) = connected().await;
    let key = key();
    let guard = client.lock(&key).lease(MINUTE).acquire().await.unwrap();
    let began = Instant::now();
    let ran = output(
        &url,
        &[
            "run", "-k", &key, "--wait", "300ms", "--", "echo", "not run",
        ],
    )
    .with_code(75);
    assert!(began.elapsed() >= SECOND * 3 / 10);
    assert_eq!(ran.stdout, "");
    let holder = client.lock(&key).status().await.unwrap().holder.unwrap();
    let held_by = format!("held by {} for ", holder.caller.unwrap());
    assert!(ran.stderr.contains(&held_by), "{ran:?}");
    // If the lock becomes free within `--wait`, `run` acquires it.
    let mut run = start(&url, &key, &["--wait", "1m"], "echo run");
    until_waiting(&client, &key, 1).await;
    guard.release().await;
    assert_eq!(run.line(), "run");
    assert_eq!(run.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_told() {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    let ran = output(&url, &["run", "-k", "k", "--", "echo", "not run"]).with_code(69);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("127.0.0.1"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_run_is_told_as_by_a_shell() {
    let (client, url) = connected().await;
    let key = key();
    let ran = output(&url, &["run", "-k", &key, "--", "no-such-program"]).with_code(127);
    assert!(
        ran.stderr.contains("cannot run `no-such-program`"),
        "{ran:?}"
    );
    output(
        &url,
        &[
            "run",
            "-k",
            &key,
            "--",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ],
    )
    .with_code(126);
    output(
        &url,
        &["run", "-k", &key, "--", "sh", "-c", "kill -KILL $$"],
    )
    .with_code(128 + 9);
    assert!(is_free(&client, &key).await);
}

/// If SIGCHLD is inherited as ignored, the kernel keeps no exit status of a child unless the process handles SIGCHLD.
#[tokio::test(flavor = "multi_thread")]
async fn the_code_is_returned_if_sigchld_is_ignored() {
    let (_, url) = connected().await;
    let run = lockctl(&url, &["run", "-k", &key(), "--", "sh", "-c", "exit 5"]);
    let mut ignoring = Command::new("env");
    ignoring
        .arg("--ignore-signal=CHLD")
        .arg(run.get_program())
        .args(run.get_args());
    Ran::from(ignoring.output().unwrap()).with_code(5);
}

/// If the lease is lost, `run` ends the command and all its processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_stops_the_command() {
    let server = RedisServer::start().await;
    let mut run = start(
        &server.url(),
        "k",
        &["--lease", "1500ms"],
        "trap 'echo told; exit 3' TERM; sleep 60 & echo $!; wait",
    );
    let pid = run.line();
    let mut redis = server.connection().await;
    let deleted: u8 = ask(&mut redis, cmd("DEL").arg("{lock:k}")).await;
    assert_eq!(deleted, 1);
    assert_eq!(run.line(), "told");
    assert_eq!(run.code(), Some(76));
    assert!(!is_alive(&pid), "the process {pid} was left behind");
}

/// If the server stops answering, the command gets SIGTERM so early that it has the grace time to end before the lease
/// does.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_stops_the_command_before_the_end_of_the_lease() {
    let server = RedisServer::start().await;
    let script = "trap 'echo told; sleep 0.2; echo ended; exit 3' TERM; echo up; sleep 60 & wait";
    let words = ["run", "-k", "k", "--lease", "6s", "--grace", "3s", "--"];
    let mut command = lockctl(&server.url(), &[&words[..], &["sh", "-c", script]].concat());
    command.stderr(Stdio::piped());
    let mut run = Running::start(command);
    assert_eq!(run.line(), "up");
    server.stop_process();
    assert_eq!(run.line(), "told");
    assert_eq!(run.line(), "ended"); // the command was not killed
    let errors = BufReader::new(run.child.stderr.take().unwrap()).lines();
    let mut errors = errors.map_while(Result::ok);
    assert!(errors.any(|line| line.contains("was not renewed, and ends in 3.0 s")));
    server.continue_process();
    assert_eq!(run.code(), Some(76));
}

/// A command that ignores SIGTERM does not work beside the next holder, if the server cannot be reached.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ignores_sigterm_ends_with_the_lease() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let options = ["--lease", "3s", "--grace", "1900ms"];
    let mut run = start(&proxy.url(), "k", &options, script);
    let pid = run.line();
    let next = LockClient::connect(server.url()).await.unwrap();
    let next = tokio::spawn(next.lock("k").wait(MINUTE).acquire());
    proxy.blackhole(true);
    let guard = next.await.unwrap().unwrap();
    // The kill needs a moment. Without it, the command would work on for the grace time.
    let began = Instant::now();
    until(|| !is_alive(&pid));
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(run.code(), Some(76));
    guard.release().await;
}

/// After a handoff, the first lease is shorter than the grace time. The command gets no SIGTERM because of this lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_first_lease_stops_no_command() {
    let (client, url) = connected().await;
    let key = key();
    let guard = client.lock(&key).acquire().await.unwrap();
    let options = ["--wait", "1m", "--grace", "15s"];
    let mut run = start(&url, &key, &options, "trap 'echo told' TERM; sleep 3");
    until_waiting(&client, &key, 1).await;
    guard.release().await;
    assert_eq!(run.line(), "");
    assert_eq!(run.code(), Some(0));
}

/// A forced release does not stop the command at once, so the message says for how long two holders can work.
#[tokio::test(flavor = "multi_thread")]
async fn the_overlap_after_a_forced_release_is_told() {
    let (client, url) = connected().await;
    let key = key();
    let script = "trap 'exit 3' TERM; echo $LOCK_TOKEN; while :; do sleep 0.05; done";
    let words = [
        "run", "-k", &key, "--lease", "6s", "--grace", "2500ms", "--",
    ];
    let mut command = lockctl(&url, &[&words[..], &["sh", "-c", script]].concat());
    command.stderr(Stdio::piped());
    let mut run = Running::start(command);
    let token = FencingToken::new(run.line().parse().unwrap());
    let released = client.lock(&key).force_release(token, "alice").await;
    assert_eq!(released.unwrap(), ForcedRelease::Released);
    let errors = BufReader::new(run.child.stderr.take().unwrap()).lines();
    let mut errors = errors.map_while(Result::ok);
    let told = errors.find(|line| line.starts_with("lockctl: ")).unwrap();
    let text =
        "Another holder may have worked beside it for up to 2.0 s, and can for up to 2.5 s more";
    assert!(told.ends_with(text), "{told}");
    assert_eq!(run.code(), Some(76));
}

/// The grace time has to fit into the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_grace_time_that_is_too_long_is_refused() {
    let (_, url) = connected().await;
    let run = |options: &[&str]| {
        let key = key();
        let words = [&["run", "-k", &key], options, &["--", "true"]].concat();
        output(&url, &words)
    };
    let refused = run(&["--lease", "3s", "--grace", "2s"]).with_code(2);
    assert!(refused.stderr.contains("`--grace 2s`"), "{refused:?}");
    run(&["--grace", "20s"]).with_code(2);
    run(&["--lease", "3s", "--grace", "1999ms"]).with_code(0);
    run(&["--lease", "3s"]).with_code(0);
}

/// `run` waits for a server that is starting, within `--wait`.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_starting_is_waited_for() {
    let mut server = RedisServer::start().await;
    let url = server.url();
    server.kill();
    // The wait for the server is bounded, too.
    let began = Instant::now();
    let words = ["run", "-k", "k", "--wait", "1500ms", "--", "true"];
    output(&url, &words).with_code(69);
    assert!(began.elapsed() >= SECOND, "{:?}", began.elapsed());
    let mut run = start(&url, "k", &["--wait", "1m"], "echo run");
    tokio::time::sleep(SECOND).await;
    assert!(run.child.try_wait().unwrap().is_none());
    server.restart().await;
    assert_eq!(run.line(), "run");
    assert_eq!(run.code(), Some(0));
}

/// `run` says that it waits, and for whom. `list` and `inspect` show the name of the command, or the label.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_and_the_command_are_told() {
    let (client, url) = connected().await;
    let key = key();
    let script = "read line";
    let words = ["run", "-k", &key, "--", "/bin/sh", "-c", script];
    let mut command = lockctl(&url, &words);
    command.stdin(Stdio::piped());
    let mut holder = Running::start(command);
    let taken = async || !is_free(&client, &key).await;
    support::until(taken).await;
    let words = [
        "run", "-k", &key, "-w", "1m", "--label", "nightly", "--", "true",
    ];
    let mut command = lockctl(&url, &words);
    command.stderr(Stdio::piped());
    let mut waiting = Running::start(command);
    until_waiting(&client, &key, 1).await;
    let seen = output(&url, &["inspect", &key, "-o", "json"])
        .with_code(0)
        .json();
    assert_eq!(seen["holder"]["caller"]["function"], "sh", "{seen}");
    assert_eq!(seen["queue"][0]["caller"]["function"], "nightly", "{seen}");
    let mut errors = BufReader::new(waiting.child.stderr.take().unwrap());
    let mut told = String::new();
    errors.read_line(&mut told).unwrap();
    let text = format!("lockctl: still waiting for `{key}` after 10.");
    assert!(told.starts_with(&text), "{told}");
    assert!(
        told.contains(" s: held by lockctl@") && told.contains("`sh`"),
        "{told}"
    );
    drop(holder.child.stdin.take());
    assert_eq!(holder.code(), Some(1));
    assert_eq!(waiting.code(), Some(0));
}

/// A command that ignores SIGTERM is killed after the grace time, with all its processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ignores_sigterm_is_killed() {
    let (client, url) = connected().await;
    let key = key();
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & wait; while :; do sleep 0.05; done";
    let mut run = start(&url, &key, &["--grace", "300ms"], script);
    let pid = run.line();
    let began = Instant::now();
    run.signal("TERM");
    assert_eq!(run.code(), Some(128 + 9));
    assert!(began.elapsed() >= SECOND * 3 / 10);
    assert!(!is_alive(&pid), "the process {pid} was left behind");
    assert!(is_free(&client, &key).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_are_passed_on() {
    let (client, url) = connected().await;
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("USR1", 10)] {
        let key = key();
        let script = format!(
            "trap 'echo told; exit {number}' {name}; echo up; while :; do sleep 0.05; done"
        );
        let mut run = start(&url, &key, &[], &script);
        assert_eq!(run.line(), "up");
        run.signal(name);
        assert_eq!(run.line(), "told", "{name}");
        assert_eq!(run.code(), Some(number));
        assert!(is_free(&client, &key).await);
    }
}

/// `run` ends the processes that a command leaves behind before it releases the lock, because they would otherwise work
/// without the lock.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_leaves_behind_ends_before_the_release() {
    let (client, url) = connected().await;
    let key = key();
    // The process that is left behind checks, when it gets SIGTERM, that the lock is still held.
    let script = r#"
        ready=$(mktemp -u)
        (
            trap '"$LOCKCTL" inspect "$LOCK_KEY" >/dev/null; echo "held $?"; exit' TERM
            sh -c 'echo "$PPID"'; touch "$ready"
            while :; do sleep 0.05; done
        ) &
        until [ -e "$ready" ]; do sleep 0.01; done
        rm "$ready"
        exit 4
    "#;
    let mut command = lockctl(&url, &["run", "--key", &key, "--", "sh", "-c", script]);
    command
        .env("LOCK_URL", &url)
        .env("LOCKCTL", env!("CARGO_BIN_EXE_lockctl"));
    let mut run = Running::start(command);
    let pid = run.line();
    assert_eq!(run.line(), "held 0");
    assert_eq!(run.code(), Some(4));
    assert!(!is_alive(&pid), "the process {pid} was left behind");
    assert!(is_free(&client, &key).await);
}

/// Starts `lockctl run` as a user who cannot signal the processes of other users: root without the right to do so.
/// Returns `None` unless the test runs as root.
fn start_without_rights(
    url: &str,
    key: &str,
    command: &[&str],
) -> Option<(Running, impl Iterator<Item = String>)> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("this test is skipped, because only root can start processes of another user");
        return None;
    }
    let words = [&["run", "-k", key, "--grace", "100ms", "--"], command].concat();
    let run = lockctl(url, &words);
    let mut limited = Command::new("setpriv");
    limited
        .args(["--bounding-set", "-kill", "--inh-caps", "-kill", "--"])
        .arg(run.get_program())
        .args(run.get_args())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut run = Running::start(limited);
    let errors = BufReader::new(run.child.stderr.take().unwrap());
    Some((run, errors.lines().map_while(Result::ok)))
}

/// `run` cannot end processes of another user, so it keeps the lock until they have ended.
#[tokio::test(flavor = "multi_thread")]
async fn processes_of_another_user_keep_the_lock() {
    let (client, url) = connected().await;
    let key = key();
    let command = ["sh", "-c", "echo $$; read line; exit 4"];
    let Some((mut run, mut errors)) = start_without_rights(&url, &key, &command) else {
        return;
    };
    let group = run.line();
    let mut other = Command::new("sh");
    other
        .args(["-c", "echo up; read line; exit 0"])
        .uid(NOBODY)
        .process_group(group.parse().unwrap())
        .stdin(Stdio::piped());
    let mut other = Running::start(other);
    assert_eq!(other.line(), "up");
    drop(run.child.stdin.take()); // ends the command
    let kept = errors.next().unwrap();
    let text = format!(
        "the process group {group}, because its processes belong to another user: the lock is kept"
    );
    assert!(kept.contains(&text), "{kept}");
    run.signal("TERM");
    let refused = errors.next().unwrap();
    assert!(refused.contains("SIGTERM cannot be sent to"), "{refused}");
    assert!(!is_free(&client, &key).await);
    drop(other.child.stdin.take());
    assert_eq!(other.code(), Some(0)); // an ended process stays in the group until its parent has asked for its code
    assert_eq!(run.code(), Some(4));
    assert!(is_free(&client, &key).await);
}

/// `run` does not claim to have ended a command that belongs to another user.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_cannot_be_sent_is_told() {
    let (client, url) = connected().await;
    let key = key();
    let uid = NOBODY.to_string();
    let script = "echo up; read line; exit 4";
    let command = [
        "setpriv",
        "--reuid",
        &uid,
        "--clear-groups",
        "sh",
        "-c",
        script,
    ];
    let Some((mut run, mut errors)) = start_without_rights(&url, &key, &command) else {
        return;
    };
    assert_eq!(run.line(), "up");
    run.signal("TERM");
    let texts = [
        "SIGTERM cannot be sent to",
        "has not ended within 100 ms: SIGKILL cannot be sent to",
    ];
    for text in texts {
        let line = errors.next().unwrap();
        assert!(line.contains(text), "{line}");
    }
    assert!(!is_free(&client, &key).await);
    drop(run.child.stdin.take());
    assert_eq!(run.code(), Some(4));
}

/// If `lockctl` itself is killed, its command ends too, and the lock is free at the end of the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_tool_takes_its_command_along() {
    let (client, url) = connected().await;
    let key = key();
    let mut run = start(
        &url,
        &key,
        &["--lease", "1s"],
        "echo $$; while :; do sleep 0.05; done",
    );
    let pid = run.line();
    assert!(is_alive(&pid));
    run.signal("KILL");
    assert_eq!(run.code(), None);
    until(|| !is_alive(&pid));
    let guard = client.lock(&key).wait(10 * SECOND).acquire().await.unwrap();
    guard.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_wait_for_the_lock() {
    let (client, url) = connected().await;
    let key = key();
    let guard = client.lock(&key).lease(MINUTE).acquire().await.unwrap();
    let mut run = start(&url, &key, &["--wait", "1m"], "echo run");
    until_waiting(&client, &key, 1).await;
    run.signal("TERM");
    assert_eq!(run.line(), "");
    assert_eq!(run.code(), Some(128 + 15));
    until_waiting(&client, &key, 0).await;
    guard.release().await;
}

/// In the foreground of a terminal, the command reads the keyboard, and Ctrl-C interrupts it. Afterwards the script
/// that has called `lockctl` has the terminal again.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_has_the_terminal() {
    let (_, url) = connected().await;
    let terminal = Terminal::new();
    let key = key();
    let script = format!(
        r#"
        "$LOCKCTL" run -k {key} -- sh -c 'touch "$READY"; read line; echo "got $line"; exit 6'; echo "code $?"
        touch "$READY"; read line; echo "then $line"
        "#
    );
    let (code, text) = terminal.run(&url, &script, &["one\n", "two\n"]);
    assert!(
        text.contains("got one") && text.contains("code 6") && text.contains("then two"),
        "{text}"
    );
    assert_eq!(code, Some(0), "{text}");
    let terminal = Terminal::new();
    let script = format!(
        r#"
        "$LOCKCTL" run -k {key} -- sh -c 'trap "echo interrupted; exit 9" INT; touch "$READY"; while :; do sleep 0.05; done'
        echo "code $?"
        "#
    );
    let (_, text) = terminal.run(&url, &script, &["\x03"]);
    assert!(
        text.contains("interrupted") && text.contains("code 9"),
        "{text}"
    );
}

/// The command is notified when the size of its terminal changes.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_sees_the_terminal_resized() {
    let (_, url) = connected().await;
    let terminal = Terminal::new();
    let key = key();
    let script = format!(
        r#"
        "$LOCKCTL" run -k {key} -- bash -c 'trap "echo resized to \$(stty size); exit 5" WINCH
            touch "$READY"; read line; stty rows 41 cols 99; while :; do sleep 0.05; done'
        echo "code $?"
        "#
    );
    let (_, text) = terminal.run(&url, &script, &["\n"]);
    assert!(
        text.contains("resized to 41 99") && text.contains("code 5"),
        "{text}"
    );
}

/// Ctrl-Z stops the command and the tool, so that the shell takes the terminal. `fg` continues the command and the
/// tool.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_can_be_stopped_and_continued() {
    let (_, url) = connected().await;
    let terminal = Terminal::new();
    let key = key();
    let script = format!(
        r#"
        set -m
        "$LOCKCTL" run -k {key} -- sh -c 'touch "$READY"; read line; echo "got $line"; exit 6'
        touch "$READY"; read line; echo "the shell got $line"
        touch "$READY"; fg >/dev/null; echo "code $?"
        "#
    );
    let (_, text) = terminal.run(&url, &script, &["\x1a", "one\n", "two\n"]);
    assert!(
        text.contains("the shell got one") && text.contains("got two") && text.contains("code 6"),
        "{text}"
    );
}

/// Starts `lockctl run` with a script that prints its process ID, and that waits for a line of input. Then asks
/// `lockctl` to stop, and waits until `lockctl` and the script have stopped.
fn start_and_stop(url: &str, key: &str, options: &[&str], script: &str) -> Running {
    // The shell waits with `read`, because a shell that just starts a process cannot stop.
    let words = [&["run", "--key", key], options, &["--", "sh", "-c", script]].concat();
    let mut command = lockctl(url, &words);
    command.stdin(Stdio::piped());
    let mut run = Running::start(command);
    let (pid, tool) = (run.line(), run.child.id().to_string());
    run.signal("TSTP");
    until(|| is_stopped(&pid) && is_stopped(&tool));
    let mut input = run.child.stdin.take().unwrap();
    input.write_all(b"line\n").unwrap();
    run
}

/// If `lockctl` is not in the foreground of a terminal, it passes SIGTSTP on, stops with the command, and continues it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_stop_is_passed_on() {
    let (_, url) = connected().await;
    let script = r#"echo $$; read line; echo "got $line"; exit 3"#;
    let mut run = start_and_stop(&url, &key(), &[], script);
    run.signal("CONT");
    assert_eq!(run.line(), "got line");
    assert_eq!(run.code(), Some(3));
}

/// A lease that ends while `lockctl` is stopped is lost. The command is then killed, and does not continue its work.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_does_not_continue_after_a_loss() {
    let (client, url) = connected().await;
    let key = key();
    let script = "trap 'echo told; exit 3' TERM; echo $$; read line; echo worked";
    let mut run = start_and_stop(&url, &key, &["--lease", "1s"], script);
    let guard = client.lock(&key).wait(10 * SECOND).acquire().await.unwrap();
    run.signal("CONT");
    assert_eq!(run.line(), "");
    assert_eq!(run.code(), Some(76));
    guard.release().await;
}

/// A stopped command gets the signals that usually end a command.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_command_gets_signals() {
    let (_, url) = connected().await;
    for name in ["TERM", "INT", "HUP", "QUIT"] {
        let script =
            format!("trap 'echo told; exit 7' {name}; echo $$; while :; do sleep 0.05; done");
        let mut run = start(&url, &key(), &[], &script);
        let pid = run.line();
        support::process::signal(pid.parse().unwrap(), "STOP");
        run.signal(name);
        assert_eq!(run.line(), "told", "{name}");
        assert_eq!(run.code(), Some(7));
    }
}

/// In a pipeline, Ctrl-Z stops the command too.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_a_pipeline_can_be_stopped_and_continued() {
    let (_, url) = connected().await;
    let terminal = Terminal::new();
    let key = key();
    let script = format!(
        r#"
        set -m
        mkfifo "$READY.fifo"
        true | "$LOCKCTL" run -k {key} -- sh -c '
            exec <>"$READY.fifo"; echo $$ >"$READY.pid"; : >"$READY"; read line; exit 6'
        echo "state $(ps -o state= -p "$(cat "$READY.pid")")"
        echo >"$READY.fifo"; fg >/dev/null; echo "code $?"
        "#
    );
    let (_, text) = terminal.run(&url, &script, &["\x1a"]);
    assert!(
        text.contains("state T") && text.contains("code 6"),
        "{text}"
    );
}

/// The command gets the terminal when it uses the terminal, although its standard input is a pipe.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_a_pipeline_can_read_the_terminal() {
    let (_, url) = connected().await;
    let terminal = Terminal::new();
    let key = key();
    let script = format!(
        r#"
        set -m
        true | "$LOCKCTL" run -k {key} -- sh -c 'touch "$READY"; read line </dev/tty; echo "got $line"; exit 6'
        echo "code $?"
        "#
    );
    let (_, text) = terminal.run(&url, &script, &["one\n"]);
    assert!(
        text.contains("got one") && text.contains("code 6"),
        "{text}"
    );
}

/// `run` does not take the terminal from the other processes of a pipeline.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_of_a_pipeline_can_read_the_terminal() {
    let (_, url) = connected().await;
    let terminal = Terminal::new();
    let key = key();
    let script = format!(
        r#"
        set -m
        "$LOCKCTL" run -k {key} -- sh -c 'echo up; until [ -e "$READY.go" ]; do sleep 0.01; done' |
            sh -c 'read up; touch "$READY"; read line </dev/tty; echo "got $line"; touch "$READY.go"'
        "#
    );
    let (_, text) = terminal.run(&url, &script, &["one\n"]);
    assert!(text.contains("got one"), "{text}");
}

/// A command in the background that reads the terminal stops with `lockctl`, and `fg` continues it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_the_background_waits_for_the_terminal() {
    let (_, url) = connected().await;
    let terminal = Terminal::new();
    let key = key();
    let script = format!(
        r#"
        set -m
        "$LOCKCTL" run -k {key} -- sh -c 'read line; echo "got $line"; exit 6' &
        until jobs %1 | grep -q Stopped; do sleep 0.01; done
        touch "$READY"; fg >/dev/null; echo "code $?"
        "#
    );
    let (_, text) = terminal.run(&url, &script, &["one\n"]);
    assert!(
        text.contains("got one") && text.contains("code 6"),
        "{text}"
    );
}
