//! The helpers of a run: keys, [`Seat`]s (the names that a task uses), the callers of a guarded function, and the
//! figures of a run.

use std::{sync::Arc, time::Duration};

use support::sent::Sent;
use uuid::Uuid;

use crate::{
    candidates::{Cycle, Seat},
    clock::{nanos, now, sleep_until},
    report::{Figure, Run},
    waiters::{Detector, Visit, Waiters},
};

/// The number of parts into which a round is divided in the workloads whose tasks have separate keys. The benchmark
/// computes one ratio for each part. The speed depends on whether a task happens to share a thread with its connection.
/// For each of the locks, one part can be two or three times as fast as another part, so a round needs many parts.
pub(crate) const SLICES: u32 = 10;

/// The number of concurrent tasks in the workload W2. The workload W3 runs with several numbers of tasks, and most
/// targets of W3 refer to this number.
pub(crate) const WAITERS: usize = 64;

/// The number of concurrent callers of one guarded function.
pub(crate) const CALLER_COUNT: u32 = 100;
/// The time for which each of these callers stays inside the guarded function.
pub(crate) const CALLER_BODY: Duration = Duration::from_millis(20);

/// The time from the moment at which the callers are spawned until the moment at which they call.
pub(crate) const CALLER_LEAD: Duration = Duration::from_millis(50);

/// Returns a new random key.
pub(crate) fn fresh_key() -> String {
    Uuid::new_v4().simple().to_string()
}

pub(crate) fn same_seats(tasks: usize) -> Vec<Seat> {
    let key = fresh_key();
    (0..tasks).map(|_| Seat::at(&key)).collect()
}

pub(crate) fn own_seats(tasks: usize) -> Vec<Seat> {
    (0..tasks).map(|_| Seat::at(&fresh_key())).collect()
}

/// Returns the number of commands for each acquisition, and the server's time for each acquisition.
pub(crate) fn per_acquisition(sent: Sent, waiters: &Waiters) -> [(Figure, f64); 2] {
    let served = waiters.served as f64;
    [
        (Figure::Sent, sent.commands as f64 / served),
        (Figure::ServerTime, sent.micros as f64 / served),
    ]
}

/// Returns the figures of a group of tasks that want one key.
pub(crate) fn run_of(waiters: &Waiters, overlaps: u64) -> Run {
    Run::from([
        (Figure::Rate, waiters.rate),
        (Figure::Least, waiters.least as f64),
        (Figure::Most, waiters.most as f64),
        (Figure::Fairness, waiters.fairness()),
        (Figure::MedianWait, waiters.wait_ms(0.5)),
        (Figure::SlowWait, waiters.wait_ms(0.99)),
        (Figure::WorstWait, waiters.wait_ms(1.0)),
        (Figure::SlowTurns, waiters.wait_turns(0.99)),
        (Figure::Overlaps, overlaps as f64),
    ])
}

/// The visits of many callers of one guarded function. All callers call at `begin`, and the last caller has its result
/// at `done`.
#[derive(Debug)]
pub(crate) struct Callers {
    pub(crate) begin: u64,
    pub(crate) done: u64,
    pub(crate) visits: Vec<Visit>,
    pub(crate) overlaps: u64,
}

impl Callers {
    /// Lets all callers call at the same time, and waits until each has its result.
    pub(crate) async fn call<C: Cycle>(candidate: &C) -> Self {
        let detector = Arc::new(Detector::default());
        let begin = now() + nanos(CALLER_LEAD);
        let callers: Vec<_> = same_seats(CALLER_COUNT as usize)
            .into_iter()
            .map(|seat| {
                let (mut candidate, detector) = (candidate.clone(), detector.clone());
                tokio::spawn(async move {
                    sleep_until(begin).await;
                    let mut inside = (0, None);
                    let body = async {
                        detector.enter();
                        let entered = now();
                        tokio::time::sleep(CALLER_BODY).await;
                        inside = (entered, Some(now()));
                        detector.leave();
                    };
                    candidate.cycle(&seat, u64::MAX, body).await;
                    Visit {
                        asked: begin,
                        entered: inside.0,
                        left: inside.1,
                    }
                })
            })
            .collect();
        let mut visits = Vec::new();
        for caller in callers {
            visits.push(caller.await.expect("a caller does not panic"));
        }
        Self {
            begin,
            done: now(),
            visits,
            overlaps: detector.overlaps(),
        }
    }

    /// Returns the figures of the callers and of the commands that they sent. A timer can end a body up to a
    /// millisecond late, and even later on a busy machine. The total time of the bodies, `bodies_s`, is therefore
    /// measured, and not computed from the number of bodies.
    pub(crate) fn run(&self, sent: Sent) -> Run {
        let seconds = |nanos| Duration::from_nanos(nanos).as_secs_f64();
        let wall = seconds(self.done - self.begin);
        let bodies = self.visits.iter().map(|visit| {
            let left = visit.left.expect("every caller gets the lock");
            left - visit.entered
        });
        Run::from([
            (Figure::Wall, wall),
            (
                Figure::OverIdeal,
                wall / (CALLER_BODY * CALLER_COUNT).as_secs_f64(),
            ),
            (Figure::Bodies, seconds(bodies.sum())),
            (Figure::Commands, sent.commands as f64),
            (Figure::Overlaps, self.overlaps as f64),
        ])
    }
}
