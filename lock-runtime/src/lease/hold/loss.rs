//! The loss of a hold: when it is noticed, who is told, and what is left of the lease until then.

use super::*;

impl HoldState {
    /// Returns an error if the lease is lost.
    pub(crate) fn not_lost(&self) -> Result<(), LockError> {
        self.loss()
            .map_or(Ok(()), |reason| Err(self.lost_by(reason)))
    }

    /// Returns the error of a call that could not enter because the hold has ended.
    pub(crate) fn not_held(&self) -> LockError {
        self.lost_by(LossReason::NotHeld)
    }

    fn lost_by(&self, reason: LossReason) -> LockError {
        LockError::Lost {
            key: self.key.clone(),
            token: self.token,
            reason,
        }
    }

    /// Returns the time that is left of the lease, also while the lock is being released; zero if the lease is lost.
    pub(crate) fn lease_left(&self) -> Duration {
        if self.is_lost() || self.has_passed() {
            return Duration::ZERO;
        }
        self.deadline()
            .map_or(self.terms.time, |until| until.since(self.backend().now()))
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.has_ended() || self.loss().is_some() {
            return Duration::ZERO;
        }
        match self.deadline() {
            Some(until) => until.since(self.backend().now()),
            None => self.terms.time,
        }
    }

    /// Returns why the lease was lost, or `None` if the lease is not lost. If the deadline has passed, this method
    /// marks the lease as lost. A lease that ends after every call has left the hold is not lost.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        if let Some(reason) = self.lost.get() {
            return Some(*reason);
        }
        (self.has_passed() && !self.has_ended()).then(|| {
            if self.give_up_unused(self.backend().now()) {
                LossReason::NotHeld
            } else {
                self.lose(LossReason::Expired)
            }
        })
    }

    fn has_passed(&self) -> bool {
        self.deadline()
            .is_some_and(|until| self.backend().now() >= until)
    }

    /// Whether the lease is valid as far as this process knows. The result is also `true` while the lock is being
    /// released.
    pub(crate) fn is_valid(&self) -> bool {
        self.lost.get().is_none() && !self.has_passed()
    }

    /// Marks the lease as lost, and returns the reason. If the lease was lost before, this method changes nothing, and
    /// returns the earlier reason.
    pub(crate) fn lose(&self, reason: LossReason) -> LossReason {
        let mut first = false;
        if !self.is_lost() {
            let now = self.backend().now();
            let end = self.deadline().map_or(now, |deadline| deadline.min(now));
            self.lost_at.set(Some(end));
        }
        let reason = *self.lost.get_or_init(|| {
            first = true;
            reason
        });
        if first {
            let is_in_use = self.is_in_use();
            if is_in_use {
                count(&self.counters().lost);
            }
            // The loss is logged after it has woken the body, because a subscriber can be slow. The body then ends the
            // call, which takes the span away.
            let span = self.span();
            self.lost_now.notify_waiters();
            if is_in_use {
                metrics::lost(self.label, reason);
                span.in_scope(|| tracing::warn!(target: TARGET, key = %self.key, token = %self.token, ?reason, "lease lost while held"));
                self.host.lost(&LeaseLoss {
                    key: self.key.clone(),
                    label: self.label,
                    function: self.function,
                    token: self.token,
                    reason,
                });
            } else {
                tracing::debug!(target: TARGET, key = %self.key, token = %self.token, ?reason, "lease lost before the body began");
            }
        }
        reason
    }

    /// Reports that the body ends only now, if its lease was lost [`limits::LATE_END`] ago or earlier.
    pub(crate) fn report_late_end(&self) {
        if !self.is_lost() || !self.is_in_use() {
            return;
        }
        let Some(lost_at) = self.lost_at.get() else {
            return;
        };
        let late = self.backend().now().since(lost_at);
        if late >= limits::LATE_END {
            tracing::warn!(target: TARGET, key = %self.key, function = self.function, token = %self.token,
                "the body has ended {:.1} s after its lease was lost", late.as_secs_f64());
        }
    }

    /// Warns once that a poll of the body has lasted for [`limits::LONG_POLL`].
    pub(crate) fn warn_of_long_poll(&self) {
        if !self.blocked_warned.swap(true, Ordering::AcqRel) {
            self.span().in_scope(|| tracing::warn!(target: TARGET, key = %self.key, function = self.function, token = %self.token,
                "the body was not polled for {} s, because it blocks its thread: it cannot notice the loss of its lease", limits::LONG_POLL.as_secs()));
        }
    }

    /// Completes when the lease is lost. Never completes if every call leaves the hold before a loss.
    pub(crate) async fn wait_for_loss(&self) -> LossReason {
        loop {
            let mut told = pin!(self.lost_now.notified());
            told.as_mut().enable();
            if let Some(reason) = self.loss() {
                return reason;
            }
            match self.deadline().filter(|_| !self.has_ended()) {
                Some(until) => tokio::select! {
                    biased;
                    () = told => {}
                    () = self.backend().sleep_until(until) => {}
                },
                None => told.await,
            }
        }
    }

    /// Completes when the lease is lost. Logs a warning once less than a fifth of a fixed lease is left to the body.
    pub(crate) async fn watch(self: Arc<Self>) -> LossReason {
        while self.terms.renewal == Renewal::Fixed && !self.warned.load(Ordering::Acquire) {
            // A body that has blocked its thread can have lost its lease before this first look.
            if let Some(reason) = self.loss() {
                return reason;
            }
            let now = self.backend().now();
            let ends = lock(&self.lease).ends(now);
            let is_late = ends.since(now) <= self.terms.time / 5;
            if !is_late || self.plan().is_some() {
                // An extension can move the end of the lease meanwhile, and the renewals for a nested call can end.
                let next = if is_late {
                    ends.min(now + self.terms.time / 20)
                } else {
                    now + (ends.since(now) - self.terms.time / 5)
                };
                tokio::select! {
                    biased;
                    reason = self.wait_for_loss() => return reason,
                    () = self.backend().sleep_until(next) => {}
                }
                continue;
            }
            if !self.warned.swap(true, Ordering::AcqRel) {
                tracing::warn!(target: TARGET, key = %self.key,
                    token = %self.token,
                    lease = ?self.terms.time,
                    remaining = ?self.remaining(),
                    "the body has used 80 % of its fixed lease, which nobody renews"
                );
                metrics::lease_warning(self.label);
                self.host.lease_nearly_over(&LeaseWarning {
                    key: self.key.clone(),
                    label: self.label,
                    token: self.token,
                    lease: self.terms.time,
                    remaining: self.remaining(),
                });
            }
        }
        self.wait_for_loss().await
    }
}
