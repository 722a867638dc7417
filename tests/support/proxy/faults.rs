//! The settings of the proxy's faults, and the proxy's counters.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

/// The value of a byte budget that lets all bytes pass.
const NO_BUDGET: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Request,
    Reply,
}

/// Wakes the tasks that wait for a condition, so that they check it again.
#[derive(Debug, Default)]
pub(super) struct Event(Notify);

impl Event {
    pub(super) fn happened(&self) {
        self.0.notify_waiters();
    }

    /// Calls `question` at once and after each event until it returns a value, and returns this value.
    pub(super) async fn wait<T>(&self, mut question: impl FnMut() -> Option<T>) -> T {
        loop {
            let mut happened = pin!(self.0.notified());
            happened.as_mut().enable();
            if let Some(answer) = question() {
                return answer;
            }
            happened.await;
        }
    }
}

/// The settings and the counters of one proxy. The methods of [`FaultProxy`](super::FaultProxy) describe the settings.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) blackhole: AtomicBool,
    pub(super) hold_requests: AtomicBool,
    pub(super) hold_old_requests: AtomicBool,
    pub(super) hold_replies: AtomicBool,
    pub(super) drop_replies: AtomicBool,
    pub(super) refuse: AtomicBool,
    pub(super) deliver_after_cut: AtomicBool,
    pub(super) split: AtomicBool,
    pub(super) delay_micros: AtomicU64,
    pub(super) jitter_micros: AtomicU64,
    /// The number of bytes that still pass to the server before all connections are cut.
    request_budget: AtomicU64,
    /// The number of bytes that still pass to the client before all connections are cut.
    reply_budget: AtomicU64,
    /// The number of times that the proxy has cut all connections.
    pub(super) cuts: AtomicU64,
    /// The number of times that the proxy has closed the server's ends of all connections.
    pub(super) half_opens: AtomicU64,
    /// Wakes the waiting tasks when one of the settings above has changed.
    pub(super) change: Event,
    pub(super) connections: AtomicU64,
    request_bytes: AtomicU64,
    reply_bytes: AtomicU64,
    watchers: Mutex<Vec<Watcher>>,
    /// Wakes the waiting tasks when bytes of a request were read.
    pub(super) seen: Event,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            blackhole: AtomicBool::default(),
            hold_requests: AtomicBool::default(),
            hold_old_requests: AtomicBool::default(),
            hold_replies: AtomicBool::default(),
            drop_replies: AtomicBool::default(),
            refuse: AtomicBool::default(),
            deliver_after_cut: AtomicBool::default(),
            split: AtomicBool::default(),
            delay_micros: AtomicU64::default(),
            jitter_micros: AtomicU64::default(),
            request_budget: AtomicU64::new(NO_BUDGET),
            reply_budget: AtomicU64::new(NO_BUDGET),
            cuts: AtomicU64::default(),
            half_opens: AtomicU64::default(),
            change: Event::default(),
            connections: AtomicU64::default(),
            request_bytes: AtomicU64::default(),
            reply_bytes: AtomicU64::default(),
            watchers: Mutex::default(),
            seen: Event::default(),
        }
    }
}

/// Watches the requests for a pattern.
#[derive(Debug)]
struct Watcher {
    pattern: Vec<u8>,
    /// The last bytes of each connection, which may be the beginning of the pattern.
    tails: HashMap<u64, Vec<u8>>,
    found: Option<oneshot::Sender<()>>,
}

impl Watcher {
    /// Searches further bytes of a connection for the pattern. Returns whether the watcher has to continue waiting.
    fn waits_on(&mut self, connection: u64, bytes: &[u8]) -> bool {
        let tail = self.tails.entry(connection).or_default();
        tail.extend_from_slice(bytes);
        let length = self.pattern.len();
        if tail.windows(length).any(|window| window == self.pattern) {
            if let Some(found) = self.found.take() {
                let _ = found.send(());
            }
            return false;
        }
        tail.drain(..tail.len().saturating_sub(length - 1));
        !self.found.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

impl Faults {
    pub(super) fn changed(&self) {
        self.change.happened();
    }

    pub(super) fn set_latency(&self, latency: &AtomicU64, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).expect("a delay of a test is short");
        latency.store(micros, Ordering::SeqCst);
        self.changed();
    }

    /// Returns the delay of a chunk. `lot` is the chunk's share of the full jitter, from 0 to 1.
    pub(super) fn latency(&self, lot: f64) -> Duration {
        let delay = Duration::from_micros(self.delay_micros.load(Ordering::SeqCst));
        let jitter = Duration::from_micros(self.jitter_micros.load(Ordering::SeqCst));
        delay + jitter.mul_f64(lot)
    }

    pub(super) fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
        self.changed();
    }

    pub(super) fn half_open(&self) {
        self.half_opens.fetch_add(1, Ordering::SeqCst);
        self.changed();
    }

    pub(super) fn held(&self, way: Way, is_cut: bool) -> bool {
        let held = match way {
            Way::Request => {
                self.hold_requests.load(Ordering::SeqCst)
                    || is_cut && self.hold_old_requests.load(Ordering::SeqCst)
            }
            Way::Reply => self.hold_replies.load(Ordering::SeqCst),
        };
        held || self.blackhole.load(Ordering::SeqCst)
    }

    fn budget(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Request => &self.request_budget,
            Way::Reply => &self.reply_budget,
        }
    }

    pub(super) fn set_budget(&self, way: Way, bytes: u64) {
        self.budget(way).store(bytes, Ordering::SeqCst);
    }

    /// Returns how many of these bytes pass, and whether the connections are to be cut after these bytes.
    pub(super) fn spend(&self, way: Way, bytes: usize) -> (usize, bool) {
        let budget = self.budget(way);
        let left = budget.load(Ordering::SeqCst);
        if left == NO_BUDGET {
            return (bytes, false);
        }
        let allowed = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
        let rest = left - allowed as u64;
        // A spent budget stays at zero until the connections are cut, so that no byte passes before the cut.
        budget.store(rest, Ordering::SeqCst);
        (allowed, rest == 0)
    }

    /// If the budget is spent, removes the budget and cuts the connections. The removed budget does not cut later
    /// connections.
    pub(super) fn cut_spent(&self, way: Way) {
        let spent =
            self.budget(way)
                .compare_exchange(0, NO_BUDGET, Ordering::SeqCst, Ordering::SeqCst);
        if spent.is_ok() {
            self.cut();
        }
    }

    pub(super) fn bytes(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Request => &self.request_bytes,
            Way::Reply => &self.reply_bytes,
        }
    }

    pub(super) fn watch(&self, pattern: &[u8]) -> oneshot::Receiver<()> {
        assert!(!pattern.is_empty(), "the pattern is not empty");
        let (found, seen) = oneshot::channel();
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.push(Watcher {
            pattern: pattern.to_vec(),
            tails: HashMap::new(),
            found: Some(found),
        });
        seen
    }

    /// Records bytes that were read.
    pub(super) fn saw(&self, way: Way, connection: u64, bytes: &[u8]) {
        self.bytes(way)
            .fetch_add(bytes.len() as u64, Ordering::SeqCst);
        if way == Way::Request {
            self.watchers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain_mut(|watcher| watcher.waits_on(connection, bytes));
            self.seen.happened();
        }
    }
}
