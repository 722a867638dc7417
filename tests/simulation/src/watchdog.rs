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

/// The real time after which a run counts as endless, even on a busy machine. Most runs take a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

static NEXT: AtomicU64 = AtomicU64::new(0);
static RUNNING: Mutex<BTreeMap<u64, (u64, Instant)>> = Mutex::new(BTreeMap::new());

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
    running.insert(number, (seed, Instant::now()));
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
        let late = running
            .values()
            .find(|(_, began)| began.elapsed() > PATIENCE);
        if let Some((seed, _)) = late {
            println!("seed {seed}: the run has not ended within {PATIENCE:?} of real time");
            process::exit(1);
        }
    }
}
