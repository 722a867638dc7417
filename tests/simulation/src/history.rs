//! The events of a run, in order. The timeline of a failed run consists of its events. Tests compare the events of two
//! runs to check that a seed always has the same history.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Milliseconds since the beginning of the run.
    pub at: u64,
    /// The actor: a process, a server, or the world.
    pub who: String,
    /// The event.
    pub what: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8} ms  {:<12} {}", self.at, self.who, self.what)
    }
}

/// The history of one run. All clones share one history.
#[derive(Debug, Clone)]
pub struct History {
    lines: Arc<Mutex<Vec<Line>>>,
    /// Whether lines are stored; if not, they are only counted.
    kept: bool,
    counted: Arc<AtomicU64>,
    began: Instant,
}

impl History {
    /// Creates a history that begins now.
    #[must_use]
    pub fn new(kept: bool) -> Self {
        Self {
            lines: Arc::default(),
            kept,
            counted: Arc::default(),
            began: Instant::now(),
        }
    }

    /// Returns the milliseconds since the beginning of the run.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Adds a line. The functions `who` and `what`, which make the line's text, are called only if lines are stored.
    pub fn add(&self, who: impl FnOnce() -> String, what: impl FnOnce() -> String) {
        self.counted.fetch_add(1, Ordering::Relaxed);
        if self.kept {
            let line = Line {
                at: self.now(),
                who: who(),
                what: what(),
            };
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push(line);
        }
    }

    /// Returns the number of lines, whether they are stored or not.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// Returns whether there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the stored lines.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.clone()
    }
}
