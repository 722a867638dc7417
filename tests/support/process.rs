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

/// A worker: a process whose lines are events.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl Worker {
    /// Starts one test of the running test executable as a process of its own; the test is marked `#[ignore]`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn of_this_test(name: &str, variables: &[(&str, &str)]) -> Self {
        let this = std::env::current_exe().expect("a test knows its executable");
        let mut command = dies_with_parent(this);
        command
            .args([
                "--exact",
                name,
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .envs(variables.iter().copied());
        Self::start(command)
    }

    /// Starts a process whose standard output is read.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = spawn(command).expect("the worker can be started");
        let output = child.stdout.take().expect("the worker's output is piped");
        let (sender, lines) = tokio::sync::mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in io::BufRead::lines(io::BufReader::new(output)).map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Waits for a line that contains a text, and returns it.
    ///
    /// # Panics
    /// If the worker ends without it, or does not write it within 30 s.
    pub async fn until(&mut self, text: &str) -> String {
        let reading = async {
            loop {
                let line = self.lines.recv().await;
                let line =
                    line.unwrap_or_else(|| panic!("the worker ended and had not written `{text}`"));
                if line.contains(text) {
                    return line;
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), reading)
            .await
            .unwrap_or_else(|_| panic!("the worker does not write `{text}`"))
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
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
