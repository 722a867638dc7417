//! Ends the program when a run does not end. The time-outs of a run use simulated time, so they do not end a run in
//! which simulated time no longer passes.

use std::{
    collections::BTreeMap,
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
    /// The processor time of the whole program when the run began.
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
        used: used(),
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
    loop {
        thread::park_timeout(PATIENCE / 20);
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // The runs of all threads together need the processor time, so each run may take its share of it.
        let threads = u32::try_from(running.len()).unwrap_or(u32::MAX);
        let is_late = |run: &&Running| {
            used().saturating_sub(run.used) > PATIENCE * threads || run.began.elapsed() > LONGEST
        };
        if let Some(Running { seed, .. }) = running.values().find(is_late) {
            println!("seed {seed}: the run has not ended within {PATIENCE:?} of processor time");
            process::exit(1);
        }
    }
}
