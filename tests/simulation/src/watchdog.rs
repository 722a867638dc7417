//! Ends the program when a run does not end. The time-outs of a run use simulated time, so they do not end a run in
//! which simulated time no longer passes.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    process,
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// The processor time after which a run counts as endless. Most runs take a few milliseconds. On a busy machine, a run
/// takes longer, but needs no more processor time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time after which a run counts as endless even if it needs no processor time, because its threads wait.
const LONGEST: Duration = Duration::from_secs(600);

static NEXT: AtomicU64 = AtomicU64::new(0);
static RUNNING: Mutex<BTreeMap<u64, Running>> = Mutex::new(BTreeMap::new());

struct Running {
    seed: u64,
    began: Instant,
    /// The run's share of the processor time that the program has used since the run began.
    used: Duration,
}

/// Returns the processor time that this program has used.
fn used() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// A run that is watched.
pub(crate) struct Watched(u64);

/// Watches the run of a seed until the returned value is dropped.
pub(crate) fn watch(seed: u64) -> Watched {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        thread::spawn(look);
    });
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let run = Running {
        seed,
        began: Instant::now(),
        used: Duration::ZERO,
    };
    running.insert(number, run);
    Watched(number)
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.remove(&self.0);
    }
}

fn look() {
    let mut before = used();
    loop {
        thread::park_timeout(PATIENCE / 60);
        let now = used();
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // The runs of all threads share the processor time that the program has used since the last look.
        let threads = u32::try_from(running.len()).unwrap_or(u32::MAX).max(1);
        let share = (now - before) / threads;
        before = now;
        for run in running.values_mut() {
            run.used += share;
        }
        let is_late = |run: &&Running| run.used > PATIENCE || run.began.elapsed() > LONGEST;
        if let Some(Running { seed, used, .. }) = running.values().find(is_late) {
            // Unlike `eprintln`, this also reaches the user if a test harness captures the output.
            let _ = writeln!(
                io::stderr(),
                "seed {seed}: the run has not ended within {used:?} of processor time"
            );
            process::exit(1);
        }
    }
}
