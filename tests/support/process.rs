//! Child processes that a test starts and signals, and that end with the test.

use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::Duration,
};

use crate::backstage;

/// The longest time for which a test waits for a line of a worker's output.
const LINE_PATIENCE: Duration = Duration::from_secs(30);

/// Returns whether the system can kill a child when its parent ends. Linux can do this if `setpriv`, a program of
/// util-linux, starts the child.
fn has_setpriv() -> bool {
    static SETPRIV: OnceLock<bool> = OnceLock::new();
    *SETPRIV.get_or_init(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// Returns a command whose process the system kills when this process ends in any way. If the system cannot kill a
/// child when its parent ends, only a process that was started by [`Mortal::start`] is killed when this process ends.
#[must_use]
pub fn dies_with_parent(program: impl AsRef<OsStr>) -> Command {
    if has_setpriv() {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

/// A shell that outlives this process for a moment. The shell's standard input ends when this process ends in any way.
/// When its input ends, the shell kills the registered processes and removes the registered folders.
#[derive(Debug)]
struct Executor {
    shell: Child,
    orders: Option<Mutex<ChildStdin>>,
}

impl Executor {
    const SCRIPT: &str = r#"
        trap '' HUP INT TERM
        doomed=' '
        while read -r order what; do
            case $order in
                kill) doomed="$doomed$what " ;;
                spare) doomed="${doomed%% $what *} ${doomed#* $what }" ;;
                remove) set -- "$@" "$what" ;;
            esac
        done
        for pid in $doomed; do kill -KILL "$pid"; done
        [ $# -eq 0 ] || rm -rf -- "$@"
    "#;

    fn start() -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", Self::SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("`sh` can be started");
        let orders = shell.stdin.take().map(Mutex::new);
        Self { shell, orders }
    }

    fn of_this_process() -> &'static Self {
        static EXECUTOR: OnceLock<Executor> = OnceLock::new();
        EXECUTOR.get_or_init(Self::start)
    }

    fn order(&self, order: &str, what: impl std::fmt::Display) {
        let orders = self
            .orders
            .as_ref()
            .expect("the shell's input is open until the drop");
        let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
        // A single write sends the whole order, so that the shell never receives only a part of it.
        let _ = orders.write_all(format!("{order} {what}\n").as_bytes());
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.shell.wait();
    }
}

/// Removes a folder when this process ends in any way.
pub(crate) fn remove_in_the_end(folder: &Path) {
    Executor::of_this_process().order("remove", folder.display());
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process. On Linux, a process that [dies with its
/// parent](dies_with_parent) is killed when the thread that started it ends, and a test's thread ends with its test.
/// This function does not reap the process. [`Mortal`] reaps its process, and also kills it when this process ends, on
/// every system.
///
/// # Errors
/// The errors of [`Command::spawn`].
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
            .expect("the spawner can start its thread");
        sender
    });
    let (answer, spawned) = mpsc::channel();
    spawner
        .send((command, answer))
        .expect("the spawner lives as long as the process");
    spawned.recv().expect("the spawner answers")
}

/// A child process that is killed and reaped when this value is dropped, and that ends with this process.
#[derive(Debug)]
pub struct Mortal {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Mortal {
    /// Starts a command that was made with [`dies_with_parent`].
    ///
    /// # Errors
    /// The errors of [`Command::spawn`].
    pub fn start(command: Command) -> io::Result<Self> {
        let child = spawn(command)?;
        if !has_setpriv() {
            Executor::of_this_process().order("kill", child.id());
        }
        Ok(Self { child, ended: None })
    }

    /// Returns the ID of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status of the process, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
            if self.ended.is_some() {
                self.reaped();
            }
        }
        self.ended
    }

    /// Sends the process a signal (`KILL`, `STOP`, `CONT`).
    ///
    /// # Panics
    /// If the process has been reaped.
    pub fn signal(&self, name: &str) {
        assert!(self.ended.is_none(), "the process is gone");
        signal(self.pid(), name);
    }

    /// Kills the process with SIGKILL and waits until it has ended.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
            self.reaped();
        }
    }

    /// Tells the [`Executor`] not to kill the process, because the system can give the ID of a reaped process to
    /// another process.
    fn reaped(&self) {
        if !has_setpriv() {
            Executor::of_this_process().order("spare", self.pid());
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A worker process. Each line of the worker's output is an event that a test can wait for.
#[derive(Debug)]
pub struct Worker {
    process: Mortal,
    orders: Option<ChildStdin>,
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl Worker {
    /// Starts a process and reads its standard output.
    ///
    /// # Panics
    /// If the process cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null());
        Self::of(command)
    }

    /// Starts a process, and reads its standard output. The method [`tell`](Self::tell) writes to the standard input of
    /// the process.
    ///
    /// # Panics
    /// If the process cannot be started.
    #[must_use]
    pub fn obeying(mut command: Command) -> Self {
        command.stdin(Stdio::piped());
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        let mut process = Mortal::start(command).expect("the worker can be started");
        let output = process.child.stdout.take();
        let output = output.expect("the worker's output is piped");
        let (sender, lines) = tokio::sync::mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            orders: process.child.stdin.take(),
            process,
            lines,
        }
    }

    /// Writes a line to the worker's standard input.
    ///
    /// # Panics
    /// If the worker was not started with [`obeying`](Self::obeying), or has ended.
    pub fn tell(&mut self, line: &str) {
        let orders = self
            .orders
            .as_mut()
            .expect("the worker was started with `obeying`");
        writeln!(orders, "{line}").expect("the worker reads its input");
    }

    /// Returns the next line of the worker's output, or `None` if the worker has ended or has closed its output.
    ///
    /// # Panics
    /// If the worker neither writes a line nor closes its output within 30 s.
    pub async fn line(&mut self) -> Option<String> {
        backstage::within(LINE_PATIENCE, self.lines.recv())
            .await
            .expect("the worker neither writes a line nor ends")
    }

    /// Waits for a line that contains a text, and returns the line.
    ///
    /// # Panics
    /// If the worker ends before it writes such a line, or does not write one within 30 s.
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
        backstage::within(LINE_PATIENCE, reading)
            .await
            .unwrap_or_else(|| panic!("the worker does not write `{text}`"))
    }

    /// Returns the standard error of the worker, if the command pipes it and no earlier call has returned it.
    pub fn errors(&mut self) -> Option<ChildStderr> {
        self.process.child.stderr.take()
    }

    /// Returns the ID of the worker's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends the worker a signal (`KILL`, `STOP`, `CONT`).
    ///
    /// # Panics
    /// If the worker was already killed.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Kills the worker with SIGKILL and waits until it has ended.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// Returns a command that runs one test of the running test executable in a separate process. The test must be marked
/// `#[ignore]`.
///
/// # Panics
/// If the path of the test executable cannot be determined.
#[must_use]
pub fn of_this_test(name: &str, variables: &[(&str, &str)]) -> Command {
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
    command
}

/// Sends a signal (`KILL`, `STOP`, `CONT`) to a process. After `STOP`, waits until the process has stopped.
///
/// # Panics
/// If there is no such process.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .expect("`kill` can be started");
    assert!(sent.success(), "SIG{name} could not be sent to {pid}");
    // A process can continue to run for a moment after the signal has been sent.
    while name == "STOP" && !is_stopped(pid) {
        thread::yield_now();
    }
}

/// Returns whether a process is stopped or has ended.
fn is_stopped(pid: u32) -> bool {
    let state = Command::new("ps")
        .args(["-o", "state=", "-p", &pid.to_string()])
        .output()
        .expect("`ps` can be started");
    let state = String::from_utf8_lossy(&state.stdout);
    state.is_empty() || state.starts_with(['T', 'Z'])
}

#[cfg(test)]
mod tests;
