//! `lockctl run`: runs a command while holding a lock.
//!
//! The command runs in a process group of its own, so that a signal reaches all its processes. If `lockctl` runs in the
//! foreground of a terminal, it makes the command's group the foreground group. The command then gets the terminal's
//! input, interrupts and changes of size. If the command is stopped (Ctrl-Z), `lockctl` stops with it.
//!
//! In a pipeline, the other processes of `lockctl`'s group can also read the terminal, and the kernel stops them if
//! their group is not the foreground group. `lockctl` then makes the command's group the foreground group only when the
//! kernel has stopped the command because it used the terminal. Until then, `lockctl` passes interrupts and stops on.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, IsTerminal},
    mem,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use clap::Args;
use lock_runtime::{HeldBy, LockClient, LockClientBuilder, LockGuard, LossReason};
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpgrp, getpid, getppid, tcgetpgrp, tcsetpgrp},
};
use tokio::{
    signal::unix::{Signal as Signals, SignalKind, signal},
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    exit::{Exit, Failure, complain, with_advice},
    list::Held,
    output::people,
};

/// The first argument of the `lockctl` process that `run` starts, and that replaces itself with the command.
const SHIM: &str = "__under-lock";
/// The interval at which `run` checks whether all processes that the command has left behind have ended.
const LOOK: Duration = Duration::from_millis(10);
/// How long `run` waits for the end of processes that it has killed with SIGKILL.
const KILLED_WITHIN: Duration = Duration::from_secs(1);
/// The default of `--grace`, if a third of the lease is not shorter.
const GRACE: Duration = Duration::from_secs(5);
/// The latest moment, before the end of the lease, at which the command gets SIGTERM if the lease never had its whole
/// length. After a handoff, the lease is short until the engine has extended it for the first time.
const SHORT_NOTICE: Duration = Duration::from_secs(1);
/// How long one try to connect to a server can take.
const ONE_TRY: Duration = Duration::from_secs(1);
/// After how long `run` first says that it still waits. Each further message comes after twice the time.
const STILL_WAITING: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The key of the lock
    #[arg(long, short)]
    key: String,
    /// How long to wait for the server and for the lock; `0s` tries once
    #[arg(long, short, default_value = "0s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// The lease, which is renewed while the command runs: if this process is killed, the lock is free at the end of
    /// the lease
    #[arg(long, short, default_value = "30s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// How long the command has to end after SIGTERM, before it is killed; less than two thirds of the lease. By default
    /// 5s, or a third of the lease if that is shorter. If the lease is not renewed in time, the command gets SIGTERM this
    /// long before the end of the lease
    #[arg(long, short, value_parser = humantime::parse_duration)]
    grace: Option<Duration>,
    /// What `list` and `inspect` show of the command: the name of its program by default
    #[arg(long)]
    label: Option<String>,
    /// The command and its arguments. The command's environment has the variables LOCK_KEY and LOCK_TOKEN
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// If the first argument of this process is [`SHIM`], replaces this process with the command that `run` runs. Returns
/// `None` for any other first argument, and an exit code if the command cannot be started. On Linux, the kernel kills
/// the command if the `lockctl` process that holds the lock ends first, for instance because that process is killed.
///
/// The command-line parser does not know `SHIM`, so `SHIM` does not appear in the help or in completions.
pub(crate) fn become_command(words: impl IntoIterator<Item = OsString>) -> Option<Exit> {
    let mut words = words.into_iter().skip(1);
    if words.next()? != SHIM {
        return None;
    }
    let parent = words.next()?.to_str()?.parse().ok()?;
    let program = words.next()?;
    #[cfg(target_os = "linux")]
    if nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).is_err()
        || getppid() != Pid::from_raw(parent)
    {
        return Some(Exit::Lost);
    }
    let error = Command::new(&program).args(words).exec();
    complain(&format!("cannot run `{}`: {error}", program.display()));
    Some(Exit::Command(match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    }))
}

impl RunArgs {
    /// Returns the grace time.
    fn grace(&self) -> Duration {
        self.grace.unwrap_or_else(|| GRACE.min(self.lease / 3))
    }

    /// Refuses a grace time that is too long. A lease is renewed after a third of its length. With a longer grace time,
    /// the command would get SIGTERM before each renewal.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let longest = self.lease * 2 / 3;
        if self.grace() < longest || self.lease.is_zero() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "`--grace {}` is not shorter than two thirds of the lease of {}: the command could not end before the lease does: lower `--grace`, or raise `--lease`",
            humantime::format_duration(self.grace()),
            humantime::format_duration(self.lease),
        )))
    }

    /// Returns the label of the lock, which lives as long as this process.
    fn label(&self) -> &'static str {
        let program = || {
            let program = Path::new(self.command.first()?);
            Some(program.file_name()?.to_string_lossy().into_owned())
        };
        let label = self.label.clone().or_else(program);
        Box::leak(label.unwrap_or_default().into_boxed_str())
    }
}

/// Connects the client of `run`. Waits for a server that is down for as long as for the lock. With a shorter `--wait` than
/// one try to connect can take, tries once, with the patience of the other subcommands.
pub(crate) async fn connect(
    builder: LockClientBuilder,
    args: &RunArgs,
) -> Result<LockClient, Failure> {
    if args.wait < ONE_TRY {
        return Ok(builder.connect().await?);
    }
    let says = async || "no lock server has answered".to_owned();
    tokio::select! {
        connected = builder.connect_within(args.wait) => Ok(connected?),
        never = tell_waiting(&args.key, Instant::now(), says) => never,
    }
}

/// Says again and again that `run` still waits, and what it waits for.
async fn tell_waiting<T>(key: &str, began: Instant, says: impl AsyncFn() -> String) -> T {
    let mut next = STILL_WAITING;
    loop {
        sleep_until(began + next).await;
        let text = says().await;
        let waited = people(began.elapsed());
        complain(&format!("still waiting for `{key}` after {waited}: {text}"));
        next *= 2;
    }
}

/// Returns who holds the lock.
async fn holder_text(client: &LockClient, key: &str) -> String {
    let status = match client.lock(key).status().await {
        Ok(status) => status,
        Err(error) => return with_advice(&error),
    };
    let readers = Held::of(key, &status).map_or(0, |held| held.readers);
    let holder = status.holder.map(|holder| HeldBy::new(holder, None));
    let mut text = holder.map_or_else(|| "the lock is free".to_owned(), |held| held.to_string());
    if readers > 0 {
        text.push_str(&format!(" (read by {readers})"));
    }
    format!("{text}, {} waiting", status.waiters)
}

pub(crate) async fn run(
    client: &LockClient,
    args: &RunArgs,
    began: Instant,
) -> Result<Exit, Failure> {
    let mut requests = Requests::new()?;
    // A process inherits SIGCHLD as ignored from a parent that ignores it. The kernel then keeps no exit status of the
    // command. A handler ends this.
    let _sigchld = signal(SignalKind::child())?;
    let lock = client.lock(&args.key).lease(args.lease).renew(true);
    let wait = args.wait.saturating_sub(began.elapsed());
    let acquired = tokio::select! {
        acquired = lock.label(args.label()).wait(wait).acquire() => acquired,
        never = tell_waiting(&args.key, began, async || holder_text(client, &args.key).await) => never,
        // A signal ends the wait for the lock: `select!` drops the acquisition, which then leaves the queue.
        signal = requests.next() => return Ok(Exit::Signal(number(signal))),
    };
    let guard = acquired?;
    let ended = supervise(&guard, args, &mut requests).await;
    guard.release().await;
    ended
}

/// Runs the command until it has ended.
async fn supervise(
    guard: &LockGuard,
    args: &RunArgs,
    requests: &mut Requests,
) -> Result<Exit, Failure> {
    requests.add(Signal::SIGTSTP)?;
    let grace = args.grace();
    let mut group = Group::start(guard, args)?;
    let mut kill_at: Option<Instant> = None;
    // Whether the command is stopped because the lock is lost, or about to be lost.
    let mut is_lost = false;
    let mut loss_is_told = false;
    let mut was_whole = false;
    let status = loop {
        let left = guard.remaining();
        was_whole |= left > grace;
        let notice = if was_whole {
            grace
        } else {
            grace.min(SHORT_NOTICE)
        };
        tokio::select! {
            event = group.events.recv() => match event {
                Some(Event::Ended(exit)) => break Ok(exit),
                Some(Event::Stopped(signal)) => {
                    // The lease was not renewed while this process was stopped. After a loss, the command does not
                    // continue.
                    if group.stopped(signal) && guard.loss().is_none() {
                        let _ = group.send(Signal::SIGCONT);
                    }
                }
                Some(Event::NotSeen(error)) => break Err(not_seen(&format!("{error}"))),
                None => break Err(not_seen("a thread has failed")),
            },
            reason = guard.lost(), if !loss_is_told => {
                (is_lost, loss_is_told) = (true, true);
                let loss = loss_text(guard, args, reason);
                if reason == LossReason::Expired {
                    // The lease has ended, so another caller can hold the lock at any moment.
                    kill_at = None;
                    let outcome = outcome(group.send(Signal::SIGKILL), "the command is killed");
                    complain(&format!("{loss}: {outcome}"));
                } else {
                    let outcome = outcome(group.send(Signal::SIGTERM), "the command is stopped");
                    let _ = group.send(Signal::SIGCONT);
                    kill_at.get_or_insert(Instant::now() + grace);
                    complain(&format!(
                        "{loss}, because it was released by force or deleted: {outcome}. Another holder may have worked beside it for up to {}, and can for up to {} more",
                        people(args.lease / 3),
                        people(grace),
                    ));
                }
            }
            () = sleep(left.saturating_sub(notice)), if !is_lost => {
                let left = guard.remaining();
                if left <= notice && guard.loss().is_none() {
                    is_lost = true;
                    let outcome = outcome(
                        group.send(Signal::SIGTERM),
                        "the command is stopped, and killed when the lease ends",
                    );
                    let _ = group.send(Signal::SIGCONT);
                    kill_at.get_or_insert(Instant::now() + left);
                    complain(&format!(
                        "the lease of the lock `{}` (token {}) was not renewed, and ends in {}: {outcome}",
                        args.key, guard.token(), people(left),
                    ));
                }
            }
            signal = requests.next() => {
                group.pass_on(signal);
                if matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) {
                    let _ = group.send(Signal::SIGCONT); // a stopped command handles no signal
                }
                if signal == Signal::SIGTERM {
                    kill_at.get_or_insert(Instant::now() + grace);
                }
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                kill_at = None;
                let outcome = outcome(group.send(Signal::SIGKILL), "it is killed");
                complain(&format!("the command has not ended within {}: {outcome}", people(grace)));
            }
        }
    };
    group.give_terminal_back();
    let kill_at = kill_at.unwrap_or_else(|| Instant::now() + grace);
    if let Err(error) = group.end_the_rest(guard, kill_at).await {
        if is_lost {
            complain(&format!("{error}: they run on without the lock"));
        } else {
            complain(&format!("{error}: the lock is kept until they have ended"));
            is_lost = !keep_until_empty(&mut group, guard, args, requests).await;
        }
    }
    // If the command has ended before `run` notices a loss of the lease, the result is the command's own exit code.
    if is_lost { Ok(Exit::Lost) } else { status }
}

/// Keeps the lock until all processes of the group have ended. Returns whether the lock was held to the end.
async fn keep_until_empty(
    group: &mut Group,
    guard: &LockGuard,
    args: &RunArgs,
    requests: &mut Requests,
) -> bool {
    while !group.is_empty() {
        tokio::select! {
            () = sleep(LOOK) => {}
            signal = requests.next() => group.pass_on(signal),
            reason = guard.lost() => {
                let loss = loss_text(guard, args, reason);
                complain(&format!("{loss}: the process group {} runs on without the lock", group.id));
                return false;
            }
        }
    }
    true
}

fn loss_text(guard: &LockGuard, args: &RunArgs, reason: LossReason) -> String {
    let (key, token) = (&args.key, guard.token());
    format!("the lock `{key}` (token {token}) was lost ({reason:?})")
}

/// Returns what a signal does, or why it was not sent.
fn outcome(sent: Result<(), String>, done: &str) -> String {
    sent.err().unwrap_or_else(|| done.to_owned())
}

/// Returns the failure of a command whose end `run` cannot observe.
fn not_seen(error: &str) -> Failure {
    let text = format!(
        "cannot wait for the command: {error}: its exit code is not known, and its processes are ended"
    );
    Failure::Text(Exit::NotSeen, text)
}

/// The signals that `run` receives and passes on to the command.
struct Requests(Vec<(Signal, Signals)>);

impl Requests {
    fn new() -> io::Result<Self> {
        let mut requests = Self(Vec::new());
        for one in [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGQUIT,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
        ] {
            requests.add(one)?;
        }
        Ok(requests)
    }

    fn add(&mut self, one: Signal) -> io::Result<()> {
        let signals = signal(SignalKind::from_raw(one as i32))?;
        self.0.push((one, signals));
        Ok(())
    }

    async fn next(&mut self) -> Signal {
        let each = self.0.iter_mut().map(|(number, signals)| {
            Box::pin(async move {
                // The stream of signals never ends while the runtime runs.
                signals.recv().await;
                *number
            })
        });
        futures_util::future::select_all(each).await.0
    }
}

enum Event {
    Ended(Exit),
    Stopped(Signal),
    /// The wait for the command has failed.
    NotSeen(Errno),
}

/// The process group of the command.
struct Group {
    id: Pid,
    events: mpsc::UnboundedReceiver<Event>,
    /// The controlling terminal of this process, if it has one.
    terminal: Option<Terminal>,
    /// Whether this group becomes the foreground group as soon as this process is in the foreground.
    needs_terminal: bool,
    /// Whether `run` has made this group the foreground group.
    has_terminal: bool,
    /// Whether `run` has passed on a request to stop (SIGTSTP).
    stop_asked: bool,
}

impl Group {
    fn start(guard: &LockGuard, args: &RunArgs) -> Result<Self, Failure> {
        let child = command(args)?
            .env("LOCK_KEY", &args.key)
            .env("LOCK_TOKEN", guard.token().to_string())
            .stdin(Stdio::inherit())
            .process_group(0)
            .spawn()
            .map_err(|error| {
                let text = format!("cannot start a process: {error}");
                Failure::Text(Exit::Command(126), text)
            })?;
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        let (events, receiver) = mpsc::unbounded_channel();
        thread::spawn(move || report(id, &events));
        let mut group = Self {
            id,
            events: receiver,
            terminal: Terminal::open(),
            // Otherwise this process is possibly a part of a pipeline.
            needs_terminal: io::stdin().is_terminal() && io::stdout().is_terminal(),
            has_terminal: false,
            stop_asked: false,
        };
        group.hand_terminal();
        Ok(group)
    }

    /// Sends a signal to all processes of the group. Fails if all of them belong to another user. Does nothing if no
    /// process is left.
    fn send(&self, signal: Signal) -> Result<(), String> {
        match members(killpg(self.id, signal)) {
            Members::None | Members::Own => Ok(()),
            Members::Foreign => Err(format!(
                "{signal} cannot be sent to the process group {}, because its processes belong to another user",
                self.id
            )),
        }
    }

    /// Sends a signal that `run` has received to all processes of the group.
    fn pass_on(&mut self, signal: Signal) {
        self.stop_asked |= signal == Signal::SIGTSTP;
        if let Err(error) = self.send(signal) {
            complain(&error);
        }
    }

    /// Handles a stop of the command, and returns whether the command has to be continued. Usually stops this process
    /// too, so that the shell takes the terminal, and returns when this process is continued.
    fn stopped(&mut self, signal: Signal) -> bool {
        let was_asked = mem::take(&mut self.stop_asked);
        let used_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        self.needs_terminal |= used_terminal;
        if used_terminal && self.hand_terminal() {
            return true;
        }
        let had_terminal = self.has_terminal;
        self.give_terminal_back();
        if was_asked {
            // The sender of SIGTSTP decides which other processes stop.
            let _ = kill(getpid(), Signal::SIGSTOP);
        } else if had_terminal || used_terminal {
            let _ = kill(Pid::from_raw(0), Signal::SIGSTOP);
        } else {
            return false; // the program that has stopped the command also continues it
        }
        // This process runs again. If the user continued it in the foreground, the shell has given the terminal to this
        // process's group.
        self.hand_terminal();
        true
    }

    /// Makes this group the foreground group if it needs the terminal and this process is in the foreground. Returns
    /// whether this group is the foreground group.
    fn hand_terminal(&mut self) -> bool {
        let (true, Some(terminal)) = (self.needs_terminal, &self.terminal) else {
            return false;
        };
        match terminal.foreground() {
            Some(group) if group == getpgrp() => terminal.hand_to(self.id),
            Some(group) if group == self.id => {}
            _ => return false,
        }
        self.has_terminal = true;
        true
    }

    fn give_terminal_back(&mut self) {
        if let (true, Some(terminal)) = (mem::take(&mut self.has_terminal), &self.terminal) {
            terminal.hand_to(getpgrp());
        }
    }

    /// Ends the processes that the command has left behind in its group, because they would otherwise run on without
    /// the lock. Kills them at `kill_at`, or when the lease ends. Fails if processes of another user are left.
    async fn end_the_rest(&self, guard: &LockGuard, kill_at: Instant) -> Result<(), String> {
        if self.is_empty() {
            return Ok(());
        }
        let _ = self.send(Signal::SIGTERM);
        let _ = self.send(Signal::SIGCONT);
        while Instant::now() < kill_at && guard.loss() != Some(LossReason::Expired) {
            if self.is_empty() {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        let _ = self.send(Signal::SIGKILL);
        let until = Instant::now() + KILLED_WITHIN;
        while Instant::now() < until {
            if self.is_empty() {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        self.send(Signal::SIGKILL)
    }

    fn is_empty(&self) -> bool {
        // If `lockctl` is the first process of a container, it becomes the parent of processes whose parents have
        // ended. `lockctl` then has to collect their exit codes, because ended processes otherwise stay in the group.
        let _ = waitpid(Pid::from_raw(-self.id.as_raw()), Some(WaitPidFlag::WNOHANG));
        members(killpg(self.id, None)) == Members::None
    }
}

/// The processes of a group, as far as a signal shows them.
#[derive(Debug, PartialEq, Eq)]
enum Members {
    None,
    /// At least one process can be signalled.
    Own,
    /// No process can be signalled, because all of them belong to another user.
    Foreign,
}

/// Interprets the result of `killpg`.
fn members(signalled: nix::Result<()>) -> Members {
    match signalled {
        Err(Errno::ESRCH) => Members::None,
        Err(Errno::EPERM) => Members::Foreign,
        Ok(()) | Err(_) => Members::Own,
    }
}

/// Returns a `Command` that starts the user's command, on Linux through a `lockctl` process with the argument [`SHIM`].
fn command(args: &RunArgs) -> Result<Command, Failure> {
    let (program, words) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("no command"))?;
    let mut command;
    if cfg!(target_os = "linux") {
        command = Command::new("/proc/self/exe");
        command
            .arg(SHIM)
            .arg(std::process::id().to_string())
            .arg(program);
    } else {
        command = Command::new(program);
    }
    command.args(words);
    Ok(command)
}

/// Waits for the command, and reports each stop and the end of the command.
fn report(child: Pid, events: &mpsc::UnboundedSender<Event>) {
    loop {
        let event = match waitpid(child, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, code)) => {
                Event::Ended(Exit::Command(u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => Event::Ended(Exit::Signal(number(signal))),
            Ok(WaitStatus::Stopped(_, signal)) => Event::Stopped(signal),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(error) => Event::NotSeen(error),
        };
        let is_last = !matches!(event, Event::Stopped(_));
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

fn number(signal: Signal) -> u8 {
    u8::try_from(signal as i32).unwrap_or(u8::MAX)
}

/// The controlling terminal of this process.
struct Terminal(File);

impl Terminal {
    fn open() -> Option<Self> {
        let terminal = File::options().read(true).write(true).open("/dev/tty");
        terminal.ok().map(Self)
    }

    /// Returns the foreground group.
    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.0).ok()
    }

    /// Makes a group the foreground group.
    fn hand_to(&self, group: Pid) {
        // A background process that changes the foreground group gets SIGTTOU, which stops the process unless it blocks
        // the signal.
        let mut ttou = SigSet::empty();
        ttou.add(Signal::SIGTTOU);
        let before = ttou.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let _ = tcsetpgrp(&self.0, group);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_refuses_a_signal_is_not_empty() {
        assert_eq!(members(Err(Errno::ESRCH)), Members::None);
        assert_eq!(members(Err(Errno::EPERM)), Members::Foreign);
        assert_eq!(members(Ok(())), Members::Own);
    }

    #[test]
    fn a_failed_wait_for_the_command_is_reported() {
        let (events, mut receiver) = mpsc::unbounded_channel();
        report(getppid(), &events); // the parent is not a child, so the wait fails
        let event = receiver.try_recv();
        assert!(matches!(event, Ok(Event::NotSeen(Errno::ECHILD))));
        let Failure::Text(exit, text) = not_seen("ECHILD") else {
            panic!("the failure has a text");
        };
        assert_eq!(exit.code(), 71);
        assert!(text.contains("its exit code is not known"), "{text}");
    }
}
