use std::{fs, net::TcpStream, os::unix::process::ExitStatusExt};

use super::*;
use crate::{server::RedisServer, until};

const SIGKILL: i32 = 9;

fn shell(script: &str) -> Command {
    let mut command = dies_with_parent("sh");
    command.args(["-c", script]);
    command
}

#[tokio::test]
async fn lines_are_events() {
    let mut worker = Worker::start(shell("echo one; echo two; echo three"));
    assert_eq!(worker.until("tw").await, "two");
    assert_eq!(worker.line().await.as_deref(), Some("three"));
    assert_eq!(worker.line().await, None);
}

#[tokio::test]
#[should_panic(expected = "had not written `done`")]
async fn a_worker_that_ends_early_fails_the_test() {
    Worker::start(shell("echo hello")).until("done").await;
}

/// The worker writes numbers, and the test waits for them in real time although the test's clock is paused.
#[tokio::test(start_paused = true)]
async fn a_stopped_worker_writes_nothing_until_it_goes_on() {
    let script = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done";
    let mut worker = Worker::start(shell(script));
    worker.until("3").await;
    worker.signal("STOP");
    // Read the lines that the worker wrote before it stopped.
    while backstage::within(Duration::from_millis(200), worker.lines.recv())
        .await
        .is_some()
    {}
    worker.signal("CONT");
    assert!(worker.line().await.is_some());
}

#[test]
fn a_dropped_process_is_killed_and_reaped() {
    let mut command = dies_with_parent("sleep");
    command.arg("600");
    let mut process = Mortal::start(command).expect("`sleep` can be started");
    assert_eq!(process.ended(), None);
    process.signal("STOP");
    process.kill();
    let ended = process.ended().expect("the process is reaped");
    assert_eq!(ended.signal(), Some(SIGKILL));
}

#[test]
fn the_executor_kills_and_removes_when_its_input_ends() {
    let folder = std::env::temp_dir().join(format!("a folder-{}", uuid::Uuid::new_v4()));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), "").unwrap();
    let mut sleepers: Vec<Child> = (0..4)
        .map(|_| Command::new("sleep").arg("600").spawn().unwrap())
        .collect();
    let executor = Executor::start();
    executor.order("remove", folder.display());
    for sleeper in &sleepers {
        executor.order("kill", sleeper.id());
    }
    executor.order("spare", sleepers[2].id());
    // Before the executor is dropped, it neither kills the processes nor removes the folder.
    assert!(folder.exists());
    assert!(sleepers[0].try_wait().unwrap().is_none());
    drop(executor);
    for killed in [0, 1, 3] {
        assert_eq!(sleepers[killed].wait().unwrap().signal(), Some(SIGKILL));
    }
    assert!(!folder.exists());
    assert!(
        sleepers[2].try_wait().unwrap().is_none(),
        "the spared process still runs"
    );
    sleepers[2].kill().unwrap();
    sleepers[2].wait().unwrap();
}

/// Runs as a process that starts a server. The test below kills this process.
#[tokio::test]
#[ignore = "a process of another test"]
async fn parent_of_a_server() {
    let server = RedisServer::start().await;
    println!("\nlistens: {} {}", server.port(), server.unix_url());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_server_and_its_folder_die_with_a_killed_parent() {
    let mut parent = Worker::start(of_this_test("process::tests::parent_of_a_server", &[]));
    let line = parent.until("listens: ").await;
    let mut words = line.split_whitespace().skip(1);
    let port: u16 = words.next().unwrap().parse().unwrap();
    let socket = words.next().unwrap().strip_prefix("redis+unix://").unwrap();
    let folder = Path::new(socket).parent().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(folder.is_dir());
    parent.kill();
    until(async || TcpStream::connect(("127.0.0.1", port)).is_err()).await;
    until(async || !folder.exists()).await;
}
