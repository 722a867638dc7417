//! Shows the progress of a long command on the standard error. On a terminal, the library draws a bar. Elsewhere, the
//! library writes plain lines without escape codes, such as `12 of 99, 3 minutes left: row_28`. The library writes
//! nothing to the standard output, which is for the results of the command.

use std::{
    fmt,
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{
    HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, WeakProgressBar,
};

/// The shortest time between two plain lines of a command whose length is known as a time.
const QUIET: Duration = Duration::from_secs(10);
/// How often the bar is redrawn while nothing is reported, so that the bar shows the right times.
const REDRAW: Duration = Duration::from_secs(1);
/// The number of parts into which a bar is divided if the length of the command is known as a time. This number is
/// larger than the number of columns of the bar.
const PARTS: u64 = 1000;

/// The bar that this process draws.
static DRAWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// The progress of a command. When this value is dropped, the bar is removed from the terminal.
///
/// While a bar is drawn, the command must write its output inside of [`suspend`].
pub struct Progress {
    began: Instant,
    state: Arc<Mutex<State>>,
    output: Output,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}

enum Output {
    Bar(ProgressBar),
    Lines(Mutex<Box<dyn Write + Send>>),
}

impl Progress {
    /// Shows the progress of a command with this number of steps. The methods [`begin`](Self::begin) and
    /// [`end`](Self::end) report the steps.
    #[must_use]
    pub fn of_steps(steps: usize) -> Self {
        Self::on_stderr(State::new(Extent::Steps {
            all: steps as u64,
            ended: 0,
            is_running: false,
        }))
    }

    /// Shows the progress of a command that runs for a known time, or until a known number of events has happened. The
    /// method [`reach`](Self::reach) reports the share that is done.
    #[must_use]
    pub fn of_time() -> Self {
        Self::on_stderr(State::new(Extent::Share(0.0)))
    }

    fn on_stderr(state: State) -> Self {
        let target = ProgressDrawTarget::stderr();
        // `is_hidden` returns true unless the standard error is a terminal that understands escape codes.
        if target.is_hidden() {
            return Self::with_lines(state, Box::new(io::stderr()));
        }
        let progress = Self::with_bar(state, target);
        if let Output::Bar(bar) = &progress.output {
            *locked(&DRAWN) = Some(bar.downgrade());
            bar.enable_steady_tick(REDRAW);
        }
        progress
    }

    fn with_lines(state: State, lines: Box<dyn Write + Send>) -> Self {
        Self {
            began: Instant::now(),
            state: Arc::new(Mutex::new(state)),
            output: Output::Lines(Mutex::new(lines)),
        }
    }

    fn with_bar(state: State, target: ProgressDrawTarget) -> Self {
        let length = match state.extent {
            Extent::Steps { all, .. } => all,
            Extent::Share(_) => PARTS,
        };
        let what = state.what.clone();
        let state = Arc::new(Mutex::new(state));
        let shown = state.clone();
        let position = move |bar: &ProgressState, text: &mut dyn fmt::Write| {
            // The error is ignored, because `text` is a `String`, to which a write cannot fail.
            let _ = write!(text, "{}", locked(&shown).position(bar.elapsed()));
        };
        let style =
            ProgressStyle::with_template("{elapsed_precise} [{bar:20}] {position}: {wide_msg}")
                .expect("the template is valid")
                .with_key("position", position)
                .progress_chars("=> ");
        let bar = ProgressBar::with_draw_target(Some(length), target)
            .with_style(style)
            .with_message(what);
        Self {
            began: Instant::now(),
            state,
            output: Output::Bar(bar),
        }
    }

    /// Reports that a step begins. If another step was running, that step counts as ended.
    pub fn begin(&self, what: impl fmt::Display) {
        self.report(|state, elapsed| state.begin(what.to_string(), elapsed));
    }

    /// Reports that a step has ended. For commands that run several steps at the same time.
    pub fn end(&self, what: impl fmt::Display) {
        self.report(|state, elapsed| state.end(what.to_string(), elapsed));
    }

    /// Reports the share of the command that is done, from 0.0 to 1.0. Plain lines are at least 10 s apart, so the
    /// command can call this method as often as it likes.
    pub fn reach(&self, share: f64, what: impl fmt::Display) {
        self.report(|state, elapsed| state.reach(share, what.to_string(), elapsed));
    }

    /// Applies `change` to the state, and shows the new state. `change` returns the plain line to write, if one is due.
    fn report(&self, change: impl FnOnce(&mut State, Duration) -> Option<String>) {
        // The bar locks its own state first and this state second. To avoid a deadlock, this function must not call the
        // bar while it holds the lock of this state.
        let (line, what, done) = {
            let mut state = locked(&self.state);
            let line = change(&mut state, self.began.elapsed());
            (line, state.what.clone(), state.extent.done())
        };
        match &self.output {
            Output::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(what);
            }
            Output::Lines(lines) => {
                if let Some(line) = line {
                    // The error is ignored, because the command goes on even if nobody reads its progress.
                    let _ = locked(lines).write_all(format!("{line}\n").as_bytes());
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Output::Bar(bar) = &self.output {
            bar.finish_and_clear();
        }
    }
}

/// Removes the bar from the terminal while `print` writes to the standard output or the standard error. If no bar is
/// drawn, only calls `print`.
///
/// This function must not be called inside of `print`, because the inner call would never return.
pub fn suspend<T>(print: impl FnOnce() -> T) -> T {
    let bar = locked(&DRAWN).as_ref().and_then(WeakProgressBar::upgrade);
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the length of a command is known in advance.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Extent {
    Steps {
        all: u64,
        ended: u64,
        is_running: bool,
    },
    /// The share of the command that is done.
    Share(f64),
}

impl Extent {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a command has fewer than 2^52 steps"
    )]
    fn share_of(ended: u64, all: u64) -> f64 {
        (ended as f64 / all.max(1) as f64).min(1.0)
    }

    fn share(self) -> f64 {
        match self {
            Self::Steps { all, ended, .. } => Self::share_of(ended, all),
            Self::Share(share) => share.clamp(0.0, 1.0),
        }
    }

    /// Returns the share of the command that will be done when the running step ends, or `None` if the command has no
    /// steps.
    fn next_share(self) -> Option<f64> {
        match self {
            Self::Steps { all, ended, .. } => Some(Self::share_of(ended + 1, all)),
            Self::Share(_) => None,
        }
    }

    /// Returns the position on the bar.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the share is between 0 and 1"
    )]
    fn done(self) -> u64 {
        match self {
            Self::Steps { ended, .. } => ended,
            Self::Share(_) => (self.share() * PARTS as f64) as u64,
        }
    }
}

/// What a command has done so far. All times are times since the beginning of the command.
#[derive(Debug)]
struct State {
    extent: Extent,
    /// The time of the last report.
    reported: Duration,
    /// What runs now.
    what: String,
    /// The time of the last plain line.
    told: Option<Duration>,
}

impl State {
    fn new(extent: Extent) -> Self {
        Self {
            extent,
            reported: Duration::ZERO,
            what: "starting".to_owned(),
            told: None,
        }
    }

    fn begin(&mut self, what: String, elapsed: Duration) -> Option<String> {
        if let Extent::Steps {
            ended, is_running, ..
        } = &mut self.extent
        {
            *ended += u64::from(*is_running);
            *is_running = true;
        }
        self.tell(what, elapsed)
    }

    fn end(&mut self, what: String, elapsed: Duration) -> Option<String> {
        if let Extent::Steps { ended, .. } = &mut self.extent {
            *ended += 1;
        }
        self.tell(what, elapsed)
    }

    fn reach(&mut self, share: f64, what: String, elapsed: Duration) -> Option<String> {
        self.extent = Extent::Share(share);
        let told = self.told.unwrap_or_default();
        if elapsed.saturating_sub(told) >= QUIET {
            return self.tell(what, elapsed);
        }
        self.reported = elapsed;
        self.what = what;
        None
    }

    fn tell(&mut self, what: String, elapsed: Duration) -> Option<String> {
        self.reported = elapsed;
        self.what = what;
        self.told = Some(elapsed);
        let position = self.position(elapsed);
        Some(match self.extent {
            Extent::Steps { .. } => format!("{position}: {}", self.what),
            Extent::Share(_) => {
                let after = HumanDuration(elapsed);
                format!("after {after}, {position}: {}", self.what)
            }
        })
    }

    /// Returns the number of steps that have ended, and the time left.
    fn position(&self, elapsed: Duration) -> String {
        let left = self.left(elapsed).map(HumanDuration);
        match (self.extent, left) {
            (Extent::Steps { all, ended, .. }, None) => format!("{ended} of {all}"),
            (Extent::Steps { all, ended, .. }, Some(left)) => {
                format!("{ended} of {all}, {left} left")
            }
            (Extent::Share(_), None) => "time left unknown".to_owned(),
            (Extent::Share(_), Some(left)) => format!("{left} left"),
        }
    }

    /// Estimates the time left, on the assumption that the rest of the command is as fast as the part that is done. If
    /// the running step already takes longer than the average step, the estimate for the other steps rises too. Returns
    /// `None` if nothing is done yet.
    fn left(&self, elapsed: Duration) -> Option<Duration> {
        let done = self.extent.share();
        if done <= 0.0 {
            return None;
        }
        let (reported, elapsed) = (self.reported.as_secs_f64(), elapsed.as_secs_f64());
        let as_reported = reported / done - elapsed;
        let if_the_step_ended_now = self
            .extent
            .next_share()
            .map(|next| elapsed / next - elapsed);
        let left = as_reported.max(if_the_step_ended_now.unwrap_or(0.0));
        Duration::try_from_secs_f64(left.max(0.0)).ok()
    }
}

#[cfg(test)]
mod tests;
