//! Child processes that a test starts and signals, and that die with it.

use std::{
    io,
    process::{Child, Command, Stdio},
    sync::{OnceLock, mpsc},
    thread,
};

/// A command whose process is killed when this one ends, however that happens: Linux does it for the asking.
#[must_use]
pub fn dies_with_parent(program: impl AsRef<std::ffi::OsStr>) -> Command {
    static SETPRIV: OnceLock<bool> = OnceLock::new();
    let setpriv = SETPRIV.get_or_init(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    if *setpriv {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process: to Linux, the parent of a process is the thread
/// that started it, and a test's thread ends with its test.
///
/// # Errors
/// As [`Command::spawn`].
///
/// # Panics
/// If no thread can be started.
pub fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, answer) in orders {
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("a thread that starts processes");
        sender
    });
    let (answer, spawned) = mpsc::channel();
    spawner
        .send((command, answer))
        .expect("the spawner lives as long as the process");
    spawned.recv().expect("the spawner answers")
}

/// Sends a signal (`KILL`, `STOP`, `CONT`) to a process that this one has started.
///
/// # Panics
/// If there is no such process.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .expect("`kill` can be started");
    assert!(sent.success(), "SIG{name} could not be sent to {pid}");
}
