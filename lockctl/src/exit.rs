//! The exit codes of `lockctl`, and the failures that cause them.

use std::{
    error::Error,
    fmt, io,
    process::{ExitCode, Termination},
};

use lock_runtime::{ConnectError, LockError};

/// The table of exit codes, which the command's help and the manual page contain.
pub(crate) const TABLE: &str = "\
Exit codes:
  0    done
  1    the answer is no: nobody holds the lock, or `doctor` has a finding
  2    the command line is not valid
  69   the server cannot be reached
  70   the server refuses the request, or its answer is not understood
  71   `run`: the exit code of the command is not known
  75   `run`: the lock is busy
  76   `run`: the lock was lost, or its lease was not renewed in time, and the command was stopped
  77   a right is missing, or `--read-only` refuses the command
  78   the URL or another setting is not valid, or the server cannot be used for locks
  126  `run`: the command cannot be executed
  127  `run`: the command was not found
Otherwise `run` exits with the code of its command, or with 128 + N if signal N ended the command, or ended the wait for the lock.";

/// The result with which `lockctl` exits. Each result has an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    No,
    Usage,
    Unreachable,
    Refused,
    /// `lockctl run` cannot observe the end of its command.
    NotSeen,
    Busy,
    Lost,
    NotPermitted,
    BadSettings,
    /// `lockctl run` exits with the exit code of its command.
    Command(u8),
    /// A signal ended the command of `lockctl run`, or its wait for the lock.
    Signal(u8),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Unreachable => 69,
            Self::Refused => 70,
            Self::NotSeen => 71,
            Self::Busy => 75,
            Self::Lost => 76,
            Self::NotPermitted => 77,
            Self::BadSettings => 78,
            Self::Command(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
        }
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        self.code().into()
    }
}

/// The reason why a subcommand did not complete.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of the output has closed the pipe, as `head` does. `lockctl` then ends without an error message.
    OutputClosed,
    /// Any other failure. The text says what went wrong and what to do.
    Text(Exit, String),
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Text(Exit::Usage, text.into())
    }

    /// Reports the failure on stderr, and returns the exit code.
    pub(crate) fn report(self) -> Exit {
        match self {
            Self::OutputClosed => Exit::Done,
            Self::Text(exit, text) => {
                complain(&text);
                exit
            }
        }
    }
}

/// Writes a message to stderr. Ignores an error, because nobody reads a closed stderr.
pub(crate) fn complain(text: &(impl fmt::Display + ?Sized)) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "lockctl: {text}");
}

/// Returns what to do about an error of connecting, in terms of the options of `lockctl`.
pub(crate) fn advice(error: &ConnectError) -> Option<String> {
    let text = match error {
        ConnectError::InvalidTls { .. } | ConnectError::Tls { .. } => {
            "check `--cacert`, `--cert`, `--key` and `--server-name`"
        }
        ConnectError::NoCredentials { .. } => "check the file of `--password-file`",
        ConnectError::Authentication { .. } => {
            "check the user in the URL, and the password in the URL or in the file of `--password-file`"
        }
        ConnectError::NoPrimary { .. } => {
            "a failover may be under way: try again (`run --wait` waits until the failover has ended)"
        }
        ConnectError::Unreachable { .. } => {
            "check the address, and that the server runs (`run --wait` waits for a server that is starting)"
        }
        ConnectError::Eviction { .. } => "set maxmemory-policy to noeviction",
        ConnectError::UnsupportedLayout => {
            "name the server with a redis://, redis+sentinel:// or redis+cluster:// URL, or leave `--layout` out"
        }
        ConnectError::EmptyNamespace => "set `--namespace` to the application's name",
        ConnectError::NoQuorum { failures, .. } => return advice(failures.first()?),
        _ => return error.source().map(ToString::to_string),
    };
    Some(text.to_owned())
}

/// Returns the text of an error and of its sources. The last source often advises what to do.
pub(crate) fn with_advice(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Text(Exit::Refused, format!("cannot write the output: {error}")),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        io::Error::from(error).into()
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let exit = match &error {
            ConnectError::Unreachable { .. }
            | ConnectError::NoQuorum { .. }
            | ConnectError::NoPrimary { .. }
            | ConnectError::Closed { .. } => Exit::Unreachable,
            ConnectError::Permission { .. } | ConnectError::Authentication { .. } => {
                Exit::NotPermitted
            }
            _ => Exit::BadSettings,
        };
        let text = match advice(&error) {
            Some(advice) => format!("{error}: {advice}"),
            None => error.to_string(),
        };
        Self::Text(exit, text)
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let exit = match &error {
            LockError::Busy { .. } => Exit::Busy,
            LockError::Lost { .. } => Exit::Lost,
            LockError::Unreachable { .. } => Exit::Unreachable,
            LockError::InvalidKey(_) | LockError::InvalidOptions(_) => Exit::Usage,
            LockError::Refused { detail, .. }
                if detail.to_string().to_uppercase().contains("NOPERM") =>
            {
                Exit::NotPermitted
            }
            _ => Exit::Refused,
        };
        Self::Text(exit, with_advice(&error))
    }
}
