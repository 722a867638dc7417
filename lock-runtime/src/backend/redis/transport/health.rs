//! The health of one connection: which commands the server has answered, and whether the connection was given up. This
//! file only records the health. `queue/heartbeat.rs` decides when to give up a
//! connection that does not answer.

use std::{
    pin::pin,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::lease::Moment;
use tokio::sync::Notify;

/// The recorded state of a connection: when replies came, and whether the connection was lost or given up.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The moment at which the most recently answered command was sent, in ns of the local clock.
    answered: AtomicU64,
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
    /// Returns a moment that is certainly before the server sent the message that arrives now. The returned moment is
    /// the one at which the most recently answered command was sent.
    pub(crate) fn stamp(&self) -> Moment {
        Moment::new(Duration::from_nanos(self.answered.load(Ordering::Acquire)))
    }

    /// Records a reply to a command that was sent at `sent`.
    pub(crate) fn answered(&self, sent: Moment) {
        self.answered.fetch_max(nanos(sent), Ordering::AcqRel);
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
