//! The health of one connection: which commands the server has answered, how many commands are unanswered, and whether
//! the connection was given up. This file only records the health. `queue/heartbeat.rs` decides when to give up a
//! connection that does not answer.

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

use crate::background::parking::Parking;

/// The recorded state of a connection: when replies came, and whether the connection was lost or given up.
#[derive(Debug)]
pub(crate) struct Health {
    parking: Arc<Parking>,
    /// The moment at which the most recently answered command was sent, in ns of the local clock. A caller can read a
    /// reply long after it came, so the moment at which a caller reads a reply says nothing about the server.
    answered: AtomicU64,
    /// The moment at which a task of the engine last read a reply. Such a task reads a reply soon after it came, unless
    /// the connection runs on a caller's runtime, and this runtime is blocked.
    heard: AtomicU64,
    /// The newest moment at which a command was sent while no other command was under way.
    active_since: AtomicU64,
    in_flight: AtomicUsize,
    broken: AtomicBool,
    /// The reason why the connection was lost. Unset while the connection works, and also if this process gave up the
    /// connection without an error.
    lost: OnceLock<String>,
    /// Whether the session pauses before it makes the next connection, because the server is no longer a master, or a
    /// request came too late.
    demoted: AtomicBool,
    /// Whether the session uses another connection by now.
    replaced: AtomicBool,
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
            active_since: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            lost: OnceLock::new(),
            demoted: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            broke: Notify::new(),
        }
    }

    /// Returns a moment that is certainly before the server sent the message that arrives now. The returned moment is
    /// the one at which the most recently answered command was sent.
    pub(crate) fn stamp(&self) -> Moment {
        Moment::new(Duration::from_nanos(self.answered.load(Ordering::Acquire)))
    }

    /// Counts a command that is sent at `at` as under way. Returns the number of other commands under way.
    pub(crate) fn sent(&self, at: Moment) -> usize {
        let others = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if others == 0 {
            self.active_since.fetch_max(nanos(at), Ordering::AcqRel);
        }
        self.parking.watch();
        others
    }

    /// Records a reply to a command that was sent at `sent`.
    pub(crate) fn answered(&self, sent: Moment) {
        self.answered.fetch_max(nanos(sent), Ordering::AcqRel);
    }

    /// Records that the engine reads a reply at `now`.
    pub(crate) fn heard(&self, now: Moment) {
        self.heard.fetch_max(nanos(now), Ordering::AcqRel);
    }

    /// Returns the newest moment at which the server is known to have replied.
    fn last_reply(&self) -> u64 {
        let answered = self.answered.load(Ordering::Acquire);
        answered.max(self.heard.load(Ordering::Acquire))
    }

    /// Returns whether the server has answered a command that was sent at `moment` or later.
    pub(crate) fn has_answered_since(&self, moment: Moment) -> bool {
        self.answered.load(Ordering::Acquire) >= nanos(moment)
    }

    /// Returns whether the server has replied since `moment`. The connection must not run on a caller's runtime.
    pub(crate) fn has_heard_since(&self, moment: Moment) -> bool {
        self.last_reply() >= nanos(moment)
    }

    /// Returns for how long commands have been under way without a known reply, or zero if no command is under way.
    pub(crate) fn silent_for(&self, now: Moment) -> Duration {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            return Duration::ZERO;
        }
        let since = self.last_reply();
        let since = since.max(self.active_since.load(Ordering::Acquire));
        now.since(Moment::new(Duration::from_nanos(since)))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }

    /// Marks the connection as lost, because the server is gone, silent, or no longer a master.
    pub(crate) fn mark_lost(&self, reason: &str) {
        // If this process has already given up the connection, a failure says nothing about the server, so it is not
        // recorded.
        if !self.is_broken() {
            self.lost.get_or_init(|| reason.to_owned());
            self.mark_broken();
        }
    }

    /// Marks the connection as lost. The session makes the next connection after a pause.
    pub(crate) fn mark_lost_and_demoted(&self, reason: &str) {
        self.demoted.store(true, Ordering::Release);
        self.mark_lost(reason);
    }

    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Gives up the connection, so that the session makes a new one.
    pub(crate) fn mark_broken(&self) {
        self.broken.store(true, Ordering::Release);
        self.broke.notify_waiters();
    }

    /// Gives up the connection, without recording an error. The session makes the next connection after a pause.
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

    /// Records that the session now uses another connection.
    pub(crate) fn mark_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
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

/// A command that [`Health::sent`] has counted as under way. When this value is dropped, the command no longer counts
/// as under way.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Moment {
        Moment::new(SECOND * seconds)
    }

    /// A caller is polled late, and reads a reply that has come long ago. This reply does not show that the server still
    /// answers.
    #[test]
    fn a_reply_that_is_read_late_proves_nothing() {
        let health = Health::new(Arc::default());
        health.sent(at(1));
        health.sent(at(5));
        health.answered(at(1)); // read at 9 s
        assert!(!health.has_answered_since(at(2)));
        assert_eq!(health.silent_for(at(9)), 8 * SECOND);
        health.answered(at(5));
        assert!(health.has_answered_since(at(5)));
        health.heard(at(8));
        assert!(health.has_heard_since(at(8)));
        assert!(!health.has_answered_since(at(8)));
        assert_eq!(health.silent_for(at(9)), SECOND);
    }
}
