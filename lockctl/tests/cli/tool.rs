//! Helpers that run `lockctl`, and read its output and its exit code.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Returns a command that runs `lockctl` on this server.
pub(crate) fn lockctl(url: &str, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockctl"));
    command
        .env_remove("LOCK_URL")
        .env_remove("LOCK_NAMESPACE")
        .env_remove("LOCKCTL_READ_ONLY")
        .env_remove("LOCKCTL_TOKEN");
    command
        .args(["--url", url])
        .args(words)
        .stdin(Stdio::null());
    command
}

/// Runs `lockctl`, and waits until it has ended.
pub(crate) fn output(url: &str, words: &[&str]) -> Ran {
    Ran::from(lockctl(url, words).output().expect("`lockctl` starts"))
}

/// The output of a process that has ended, and its exit code.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

impl Ran {
    /// Fails unless the process has exited with this code.
    #[track_caller]
    pub(crate) fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        self
    }

    /// Returns the output as one JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns each line of the output as a JSON document.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a line is JSON"))
            .collect()
    }
}

/// A process whose output is read line by line. The process is killed when this value is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// `None` after [`Running::close_output`].
    out: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let out = child.stdout.take().expect("the output is piped");
        Self {
            child,
            out: Some(BufReader::new(out)),
        }
    }

    /// Closes the pipe through which this test reads the output.
    pub(crate) fn close_output(&mut self) {
        self.out = None;
    }

    /// Returns the next line of the output, or an empty text at its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        let out = self.out.as_mut().expect("the output is open");
        out.read_line(&mut line).expect("the output is UTF-8");
        line.trim_end().to_owned()
    }

    pub(crate) fn signal(&self, name: &str) {
        support::process::signal(self.child.id(), name);
    }

    /// Waits until the process has ended. Returns its exit code, or `None` if a signal has ended it.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.child
            .wait()
            .expect("the process is a child of this process")
            .code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the state of a process, such as `S`, `T` (stopped) or `Z` (ended); `None` if there is no such process.
fn state(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Returns whether a process still runs.
pub(crate) fn is_alive(pid: &str) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

pub(crate) fn is_stopped(pid: &str) -> bool {
    state(pid) == Some('T')
}

/// Waits until `question` returns true, for at most 20 s.
#[track_caller]
pub(crate) fn until(mut question: impl FnMut() -> bool) {
    let began = Instant::now();
    while !question() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "what the test waits for did not happen"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a key that no other test uses.
pub(crate) fn key() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    uuid.expect("Linux generates a UUID").trim().to_owned()
}

/// A terminal in which a shell runs `lockctl`.
pub(crate) struct Terminal {
    folder: PathBuf,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("lockctl-{}", key()));
        std::fs::create_dir(&folder).unwrap();
        Self { folder }
    }

    /// Runs a script in a new terminal. Each time the script creates the file `$READY`, removes the file and types the
    /// next text of `typed`.
    pub(crate) fn run(&self, url: &str, script: &str, typed: &[&str]) -> (Option<i32>, String) {
        let path = self.folder.join("script");
        std::fs::write(&path, script).unwrap();
        let ready = self.folder.join("ready");
        let bash = format!("bash {}", path.display());
        let mut command = Command::new("script");
        command
            .args(["-qec", &bash, "/dev/null"])
            .env("LOCK_URL", url)
            .env("LOCKCTL", env!("CARGO_BIN_EXE_lockctl"))
            .env("READY", &ready)
            .stdin(Stdio::piped());
        let mut running = Running::start(command);
        let mut keyboard = running.child.stdin.take().unwrap();
        let mut out = running.out.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            out.read_to_end(&mut text).map(|_| text)
        });
        for text in typed {
            until(|| std::fs::remove_file(&ready).is_ok());
            keyboard.write_all(text.as_bytes()).unwrap();
        }
        // A process that is stopped for ever does not end, so the wait has a limit.
        until(|| running.child.try_wait().unwrap().is_some());
        let text = reader.join().unwrap().unwrap();
        (running.code(), String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
