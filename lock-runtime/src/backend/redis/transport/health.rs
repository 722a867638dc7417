//! The health of one connection: when it was last heard, what is unanswered, whether it was given up. This file only
//! records; `queue/heartbeat.rs` decides after how much silence a connection is given up.

use std::{
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lock_core::lease::Moment;
use tokio::sync::Notify;

/// The place where a heartbeat sleeps while there is nothing to watch.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    parked: AtomicBool,
    active: Notify,
}

impl Parking {
    /// Wakes the heartbeat. The work to watch has to be visible before this call.
    pub(crate) fn watch(&self) {
        if self.parked.load(Ordering::SeqCst) && self.parked.swap(false, Ordering::SeqCst) {
            self.active.notify_one();
        }
    }

    /// Sleeps while there is nothing to watch.
    pub(crate) async fn park(&self, is_idle: impl Fn() -> bool) {
        if !is_idle() {
            return;
        }
        self.parked.store(true, Ordering::SeqCst);
        // Checked again, because work that began in between has not seen anybody parked.
        if is_idle() {
            self.active.notified().await;
        }
        self.parked.store(false, Ordering::SeqCst);
    }

    /// Wakes the heartbeat so that it can end.
    pub(crate) fn leave(&self) {
        self.active.notify_one();
    }
}

/// The recorded state of a connection: what it has heard, and whether it has ended.
#[derive(Debug)]
pub(crate) struct Health {
    parking: Arc<Parking>,
    /// When the newest answered command was sent, in ns of the local clock.
    answered: AtomicU64,
    /// When the newest reply came.
    heard: AtomicU64,
    /// When something was last heard, or the first unanswered command was sent.
    progress: AtomicU64,
    in_flight: AtomicUsize,
    broken: AtomicBool,
    /// Why the connection was lost; empty while it works, and if this process gave it up.
    lost: OnceLock<String>,
    /// Whether the server is no longer a master, or its clock has changed. Reconnecting at once would find the same
    /// state.
    demoted: AtomicBool,
    broke: Notify,
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

impl Health {
    pub(crate) fn new(parking: Arc<Parking>) -> Self {
        Self {
            parking,
            answered: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            lost: OnceLock::new(),
            demoted: AtomicBool::new(false),
            broke: Notify::new(),
        }
    }

    /// Returns a moment known to lie before everything that the server sends from now on.
    pub(crate) fn stamp(&self) -> Moment {
        Moment::new(Duration::from_nanos(self.answered.load(Ordering::Acquire)))
    }

    /// Notes that a command is sent. Returns how many others are under way.
    pub(crate) fn sent(&self, at: Moment) -> usize {
        let others = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if others == 0 {
            self.progress.fetch_max(nanos(at), Ordering::AcqRel);
        }
        self.parking.watch();
        others
    }

    /// Notes a reply to a command that was sent at `sent`.
    pub(crate) fn heard(&self, sent: Moment, now: Moment) {
        self.answered.fetch_max(nanos(sent), Ordering::AcqRel);
        let now = nanos(now);
        self.heard.fetch_max(now, Ordering::AcqRel);
        self.progress.fetch_max(now, Ordering::AcqRel);
    }

    /// Returns whether a reply has come since `moment`.
    pub(crate) fn has_heard_since(&self, moment: Moment) -> bool {
        self.heard.load(Ordering::Acquire) >= nanos(moment)
    }

    /// Returns for how long commands have been unanswered.
    pub(crate) fn silent_for(&self, now: Moment) -> Duration {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            return Duration::ZERO;
        }
        let progress = self.progress.load(Ordering::Acquire);
        now.since(Moment::new(Duration::from_nanos(progress)))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }

    /// Marks the connection as lost: the server is gone, silent, or no longer a master.
    pub(crate) fn mark_lost(&self, reason: &str) {
        // A failure after this process has given up the connection says nothing about the server.
        if !self.is_broken() {
            self.lost.get_or_init(|| reason.to_owned());
            self.mark_broken();
        }
    }

    /// Marks the connection as lost. The next one is made after a pause.
    pub(crate) fn mark_lost_and_demoted(&self, reason: &str) {
        self.demoted.store(true, Ordering::Release);
        self.mark_lost(reason);
    }

    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Gives up the connection.
    pub(crate) fn mark_broken(&self) {
        self.broken.store(true, Ordering::Release);
        self.broke.notify_waiters();
    }

    /// Gives up the connection. The next one is made after a pause.
    pub(crate) fn mark_demoted(&self) {
        self.demoted.store(true, Ordering::Release);
        self.mark_broken();
    }

    pub(crate) fn is_demoted(&self) -> bool {
        self.demoted.load(Ordering::Acquire)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Waits until the connection is given up.
    pub(crate) async fn until_broken(&self) {
        let mut broke = pin!(self.broke.notified());
        broke.as_mut().enable();
        if !self.is_broken() {
            broke.await;
        }
    }
}

/// Counts a command as in flight while somebody waits for it.
pub(crate) struct InFlight<'a>(&'a Health);

impl<'a> InFlight<'a> {
    pub(crate) fn of(health: &'a Health) -> Self {
        Self(health)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
