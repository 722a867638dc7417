//! Tasks that lock and unlock in a loop, and the results of their visits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    candidates::{Cycle, Seat},
    clock::{nanos, now, sleep_until},
};

/// The fixed part of the time from the spawning of the tasks until their start.
const LEAD: Duration = Duration::from_millis(10);
/// The time that each spawned task adds to [`LEAD`].
const LEAD_OF_ONE: Duration = Duration::from_micros(5);

/// The time that each task adds to the warm-up. The warm-up is long enough for every task to get the lock once, because
/// the first waits are not typical.
const FIRST_TURN: Duration = Duration::from_micros(50);

/// The number of tasks for which a run is extended by one span (the measured time of a run with few tasks). A run with
/// many tasks thus lasts longer, so that each task gets the lock several times. A run has at most [`LONGEST_SPANS`]
/// spans.
const WATCHED_FOR_A_SPAN: usize = 2_500;
/// The largest number of spans in a run.
const LONGEST_SPANS: usize = 4;

/// Detects whether two bodies hold the lock at the same time.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    inside: AtomicBool,
    overlaps: AtomicU64,
}

impl Detector {
    pub(crate) fn enter(&self) {
        if self.inside.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn leave(&self) {
        self.inside.store(false, Ordering::SeqCst);
    }

    pub(crate) fn overlaps(&self) -> u64 {
        self.overlaps.load(Ordering::SeqCst)
    }
}

/// The window of a run: the times at which the run begins (`begin`), begins to count visits (`from`), and ends, in ns
/// since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) begin: u64,
    pub(crate) from: u64,
    pub(crate) end: u64,
}

impl Window {
    /// Returns the window of a run that begins after `lead`, warms up for a tenth of `span`, and then counts visits for
    /// `span`.
    pub(crate) fn after(lead: Duration, span: Duration) -> Self {
        Self::warmed_up(lead, span / 10, span)
    }

    /// Returns the window of a run with this many concurrent tasks. The run counts visits for `span`, or longer if
    /// there are many tasks.
    pub(crate) fn of(tasks: usize, span: Duration) -> Self {
        let count = tasks as u32;
        let lead = LEAD + LEAD_OF_ONE * count;
        let warming_up = span / 10 + FIRST_TURN * count;
        let spans = (tasks / WATCHED_FOR_A_SPAN).clamp(1, LONGEST_SPANS);
        Self::warmed_up(lead, warming_up, span * spans as u32)
    }

    fn warmed_up(lead: Duration, warming_up: Duration, span: Duration) -> Self {
        let begin = now() + nanos(lead);
        let from = begin + nanos(warming_up);
        Self {
            begin,
            from,
            end: from + nanos(span),
        }
    }

    fn contains(&self, moment: u64) -> bool {
        (self.from..self.end).contains(&moment)
    }

    pub(crate) fn seconds(&self) -> f64 {
        Duration::from_nanos(self.end.saturating_sub(self.from)).as_secs_f64()
    }
}

/// One visit of a task to a lock. The fields are the times of the request, of the entry and of the end, in ns since
/// 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visit {
    pub(crate) asked: u64,
    /// The time at which the task got the lock or gave up.
    pub(crate) entered: u64,
    /// The time at which the task's body ended, or `None` if the task gave up.
    pub(crate) left: Option<u64>,
}

/// Locks and unlocks repeatedly, from the beginning of the window to the window's end. Returns the visits.
pub(crate) async fn sit<C: Cycle>(
    mut candidate: C,
    seat: Seat,
    window: Window,
    detector: Arc<Detector>,
) -> Vec<Visit> {
    let mut visits = Vec::new();
    sleep_until(window.begin).await;
    loop {
        let asked = now();
        if asked >= window.end {
            return visits;
        }
        let mut inside = None;
        let body = async {
            detector.enter();
            let entered = now();
            detector.leave();
            inside = Some((entered, now()));
        };
        candidate.cycle(&seat, window.end, body).await;
        visits.push(Visit {
            asked,
            entered: inside.map_or_else(now, |(entered, _)| entered),
            left: inside.map(|(_, left)| left),
        });
    }
}

/// Returns the number of visits whose task got the lock before an earlier visit had ended.
pub(crate) fn overlaps(tasks: &[Vec<Visit>]) -> u64 {
    let visits = tasks.iter().flatten();
    let mut bodies: Vec<(u64, u64)> = visits
        .filter_map(|visit| Some((visit.entered, visit.left?)))
        .collect();
    bodies.sort_unstable();
    let mut inside_until = 0;
    let mut overlaps = 0;
    for (entered, left) in bodies {
        overlaps += u64::from(entered < inside_until);
        inside_until = inside_until.max(left);
    }
    overlaps
}

/// The results of a group of tasks that lock and unlock.
#[derive(Debug)]
pub(crate) struct Waiters {
    tasks: usize,
    pub(crate) rate: f64,
    /// The smallest number of times that any task got the lock within the window.
    pub(crate) least: u64,
    /// The largest number of times that any task got the lock within the window.
    pub(crate) most: u64,
    /// The waits of all visits in ns, in ascending order. If a task gives up, its wait ends at that moment.
    waits: Vec<u64>,
    /// The number of visits in which the task got the lock, including visits outside the window.
    pub(crate) served: u64,
}

impl Waiters {
    /// Computes the results from the visits of the tasks. The fields `rate`, `least` and `most` count the visits whose
    /// tasks got the lock within the window. The waits are those of all visits whose tasks got the lock or gave up
    /// after the window's `from`. `served` counts all visits that got the lock.
    pub(crate) fn of(tasks: &[Vec<Visit>], window: Window) -> Self {
        let counts: Vec<u64> = tasks
            .iter()
            .map(|visits| {
                let inside = visits
                    .iter()
                    .filter(|visit| visit.left.is_some() && window.contains(visit.entered));
                inside.count() as u64
            })
            .collect();
        let mut waits: Vec<u64> = tasks
            .iter()
            .flatten()
            .filter(|visit| visit.entered >= window.from)
            .map(|visit| visit.entered.saturating_sub(visit.asked))
            .collect();
        waits.sort_unstable();
        Self {
            tasks: tasks.len(),
            rate: counts.iter().sum::<u64>() as f64 / window.seconds(),
            least: counts.iter().copied().min().unwrap_or_default(),
            most: counts.iter().copied().max().unwrap_or_default(),
            waits,
            served: tasks
                .iter()
                .flatten()
                .filter(|visit| visit.left.is_some())
                .count() as u64,
        }
    }

    pub(crate) fn fairness(&self) -> f64 {
        self.least as f64 / self.most as f64
    }

    /// Returns the wait, in ms, that this share of the visits does not exceed, or NaN if there are no visits.
    pub(crate) fn wait_ms(&self, share: f64) -> f64 {
        let last = self.waits.len().saturating_sub(1);
        let wait = self.waits.get((last as f64 * share).round() as usize);
        wait.map_or(f64::NAN, |wait| *wait as f64 / 1e6)
    }

    /// Returns the same wait as [`wait_ms`](Self::wait_ms), but measured in rounds. A round is the time in which the
    /// lock can serve every task once. Under a fair lock, no task waits much longer than one round.
    pub(crate) fn wait_turns(&self, share: f64) -> f64 {
        self.wait_ms(share) / 1e3 * self.rate / self.tasks as f64
    }
}

/// Runs one task for each seat (the names that a task uses), and returns the results of the tasks. All tasks share the
/// overlap detector `detector`; if `detector` is `None`, each task has a detector of its own.
pub(crate) async fn gather<C: Cycle>(
    candidate: &C,
    seats: Vec<Seat>,
    span: Duration,
    detector: Option<&Arc<Detector>>,
) -> Waiters {
    let window = Window::of(seats.len(), span);
    let sitting = seats.into_iter().map(|seat| (candidate.clone(), seat));
    Waiters::of(&sit_all(sitting, window, detector).await, window)
}

/// Runs one task for each candidate and its seat, and returns the visits of each task.
pub(crate) async fn sit_all<C: Cycle>(
    sitting: impl Iterator<Item = (C, Seat)>,
    window: Window,
    detector: Option<&Arc<Detector>>,
) -> Vec<Vec<Visit>> {
    let tasks: Vec<_> = sitting
        .map(|(candidate, seat)| {
            let detector = detector.cloned().unwrap_or_default();
            tokio::spawn(sit(candidate, seat, window, detector))
        })
        .collect();
    let mut visits = Vec::new();
    for task in tasks {
        visits.push(task.await.expect("a task does not panic"));
    }
    visits
}
