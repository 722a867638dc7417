//! The locks that a call has entered.

use std::{collections::HashMap, future::pending, sync::Arc, time::Duration};

use futures_util::future::{join, join_all, select_all};
use lock_core::{backend::BoxFuture, error::LockError, key::LockName, lease::Moment};

use crate::{
    acquire::{
        record::{CallRecord, InSpan},
        reentry::{Frame, Level, MultiCall},
    },
    lease::{
        hold::{HoldState, RenewalDemand},
        release::{EntryTicket, ReleaseOutcome},
        siblings::Turn,
    },
};

/// One lock that a call has entered. Dropping this value makes the call leave the lock's hold. If no other call is
/// inside the hold, dropping this value also releases the lock in the background.
#[derive(Debug)]
pub(crate) struct Entry {
    // The fields are dropped in this order: first `demand` ends the demand for renewal, then `ticket` leaves the hold,
    // and then `level` ends the entry's turn among its siblings.
    /// The demand of a nested call for renewal. It is boxed, because few calls have one.
    demand: Option<Box<RenewalDemand>>,
    ticket: EntryTicket,
    level: Level,
    /// Whether this call acquired the lock and so began the hold; `false` if the call re-entered the lock.
    began: bool,
    /// If the body returns before this moment, the lock stays taken until this moment.
    retain_until: Option<Moment>,
    /// The moment by which the body of a re-entry has to begin; `None` once it has begun.
    body_by: Option<Moment>,
}

impl Entry {
    /// Creates the entry of the call that acquired the lock.
    pub(crate) fn began(ticket: EntryTicket) -> Self {
        Self {
            demand: None,
            ticket,
            level: Level::default(),
            began: true,
            retain_until: None,
            body_by: None,
        }
    }

    /// Creates the entry of a nested call that has re-entered the lock.
    pub(crate) fn again(ticket: EntryTicket, level: Level, demand: Option<RenewalDemand>) -> Self {
        Self {
            demand: demand.map(Box::new),
            level,
            began: false,
            ..Self::began(ticket)
        }
    }

    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.ticket.hold()
    }

    /// Creates the [`Frame`] in which calls nested in this entry find the lock.
    pub(crate) fn frame(
        &self,
        outer: Option<Arc<Frame>>,
        several: Option<Arc<MultiCall>>,
    ) -> Arc<Frame> {
        Frame::new(self.hold().clone(), self.level.clone(), outer, several)
    }

    /// Whether this call acquired the lock, instead of re-entering it.
    pub(crate) fn has_begun(&self) -> bool {
        self.began
    }

    /// Marks the entry as waiting until its body begins. If the body has not begun by `until`, the lock (for a
    /// re-entry, only the turn) passes to the next waiter. Until its body begins, a re-entry does not keep the hold
    /// alive, and does not demand renewals beyond `until`.
    pub(crate) fn wait_for_body(&mut self, until: Moment) {
        if self.began {
            self.hold().wait_for_body(until);
            return;
        }
        if let Some(turn) = self.level.turn() {
            turn.wait_for_body(until);
        }
        self.body_by = Some(until);
        if let Some(demand) = &mut self.demand {
            demand.limit(until);
        }
        self.ticket.step_out();
    }

    /// Called when the body begins. The call's turn among its siblings then lasts until the call leaves the hold.
    /// Returns `false` if the turn has already passed to another call.
    pub(crate) fn take_turn(&self) -> bool {
        self.level.turn().is_none_or(Turn::begin_body)
    }

    /// Called when the body begins. Makes the hold count this entry again, after [`wait_for_body`](Self::wait_for_body)
    /// has excluded it. Returns `false` if the hold has ended.
    pub(crate) fn step_in(&mut self) -> bool {
        self.body_by = None;
        if let Some(demand) = &mut self.demand {
            demand.lift_limit();
        }
        self.ticket.step_in()
    }

    /// Whether the entry itself demands that the lease is renewed.
    pub(crate) fn has_demand(&self) -> bool {
        self.demand.is_some()
    }

    /// Returns the moment at which the renewals for the enclosing call end; `None` if no call encloses this entry, or
    /// if the enclosing call sets no limit.
    pub(crate) fn limit(&self) -> Option<Moment> {
        self.level.enclosing_limit(self.hold())
    }

    /// Replaces the entry's demand that the lease is renewed.
    pub(crate) fn set_demand(&mut self, mut demand: Option<RenewalDemand>) {
        if let (Some(demand), Some(until)) = (&mut demand, self.body_by) {
            demand.limit(until);
        }
        if self.began {
            let limit = demand.as_ref().and_then(RenewalDemand::until);
            self.hold().set_limit(limit);
        }
        self.demand = demand.map(Box::new);
    }

    /// Leaves the hold, and releases the lock if no other call is inside the hold. If `returned` is true, which means
    /// that the body has run to its end, the lock stays taken until `retain_until`.
    async fn leave(self, returned: bool) -> ReleaseOutcome {
        if let Some(until) = self.retain_until.filter(|_| returned) {
            self.hold().retain_until(until);
        }
        drop(self.demand);
        let outcome = self.ticket.leave().await;
        drop(self.level);
        outcome
    }
}

/// All locks that one call has entered.
#[derive(Debug)]
pub(crate) struct Entered {
    /// The entry of the lock that was entered last. The [`Frame`] of this entry directly encloses the frames of calls
    /// that are nested in the body.
    innermost: Entry,
    others: Vec<Entry>,
    /// The spans and metrics of the call.
    record: CallRecord,
}

impl Entered {
    pub(crate) fn one(entry: Entry) -> Self {
        Self {
            innermost: entry,
            others: Vec::new(),
            record: CallRecord::default(),
        }
    }

    /// Collects the entries of a call with several locks, in the order in which the call entered the locks.
    pub(crate) fn several(mut entries: Vec<Entry>) -> Self {
        Self {
            innermost: entries.pop().expect("a call enters at least one lock"),
            others: entries,
            record: CallRecord::default(),
        }
    }

    /// Stores the record (the spans and metrics) of the call that has acquired these locks.
    pub(crate) fn recorded_by(mut self, mut record: CallRecord) -> Self {
        let only = self.others.is_empty().then_some(&self.innermost);
        let token = only.map(|entry| entry.hold().token);
        for entry in self.entries().filter(|entry| entry.has_begun()) {
            entry.hold().set_span(record.span());
        }
        record.acquired(token, only.is_some_and(|entry| !entry.has_begun()));
        self.record = record;
        self
    }

    /// Enters the tracing spans of the call and of the hold. Dropping the returned value leaves these spans.
    pub(crate) fn enter_span(&self) -> Option<InSpan<'_>> {
        self.record.enter()
    }

    /// Makes the locks stay taken for at least `time` from now, even if the body returns earlier.
    pub(crate) fn for_at_least(mut self, time: Duration) -> Self {
        if !time.is_zero() {
            for entry in std::iter::once(&mut self.innermost).chain(&mut self.others) {
                entry.retain_until = Some(entry.ticket.hold().backend().now() + time);
            }
        }
        self
    }

    /// Returns one hold for each of these names, in the order of the names. For a repeated name, the same hold is
    /// returned again.
    pub(crate) fn named<'a>(
        &self,
        names: impl Iterator<Item = &'a LockName>,
    ) -> Vec<Arc<HoldState>> {
        let holds = self
            .entries()
            .map(|entry| (&entry.hold().name, entry.hold()));
        let holds: HashMap<_, _> = holds.collect();
        let named = names.filter_map(|name| holds.get(name).copied());
        named.cloned().collect()
    }

    /// Records in all holds of this call that the body has begun.
    pub(crate) fn begin_body(&self) {
        self.entries().for_each(|entry| {
            entry.hold().begin_body();
        });
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::once(&self.innermost).chain(&self.others)
    }

    /// Returns the hold entered last.
    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.innermost.hold()
    }

    /// Returns the frame for the body of a call with one lock.
    pub(crate) fn frame(&self, outer: Option<Arc<Frame>>) -> Arc<Frame> {
        self.innermost.frame(outer, None)
    }

    /// Returns the frame for a body that a guard's `run` method runs inside these locks. Creates one frame for each
    /// lock, nested in the order in which the locks were entered, and returns the innermost frame.
    pub(crate) fn lend(
        &self,
        outer: Option<Arc<Frame>>,
        several: Option<&Arc<MultiCall>>,
    ) -> Arc<Frame> {
        let lend = |outer, entry: &Entry| {
            let (hold, level) = (entry.hold().clone(), entry.level.clone());
            Frame::lent(hold, level, outer, several.cloned())
        };
        let outer = self
            .others
            .iter()
            .fold(outer, |outer, entry| Some(lend(outer, entry)));
        lend(outer, &self.innermost)
    }

    /// Returns an error if one of the locks is lost. Checks every lock even if the first lock is lost, so that each
    /// loss is logged.
    pub(crate) fn loss(&self) -> Option<LockError> {
        self.entries()
            .filter_map(|entry| entry.hold().not_lost().err())
            .reduce(|first, _| first)
    }

    /// Called when the body has ended. Reports each lock whose lease was lost long before. A lock that the call has
    /// re-entered is reported by the call that began the hold.
    pub(crate) fn report_late_end(&self) {
        for entry in self.entries().filter(|entry| entry.has_begun()) {
            entry.hold().report_late_end();
        }
    }

    /// Whether one of the locks is lost.
    #[inline(never)]
    pub(crate) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Completes when one of the locks is lost.
    pub(crate) fn watch(&self) -> BoxFuture<'static, ()> {
        if self.others.is_empty() {
            let hold = self.hold().clone();
            return Box::pin(async move {
                hold.watch().await;
            });
        }
        let watches = self
            .entries()
            .map(|entry| Box::pin(entry.hold().clone().watch()));
        let lost = select_all(watches);
        Box::pin(async move { drop(lost.await) })
    }

    /// Completes when one of the locks is lost that are not lost yet. Never completes if all locks are lost.
    pub(crate) fn watch_rest(&self) -> BoxFuture<'static, ()> {
        // The check of each lock logs its loss, so every lost lock that is left out here has been logged.
        let rest = self
            .entries()
            .filter(|entry| entry.hold().not_lost().is_ok());
        let watches: Vec<_> = rest
            .map(|entry| Box::pin(entry.hold().clone().watch()))
            .collect();
        if watches.is_empty() {
            return Box::pin(pending());
        }
        let lost = select_all(watches);
        Box::pin(async move { drop(lost.await) })
    }

    /// Leaves all locks at the same time, and returns the outcome for the lock that was entered last. `hold_at_least`
    /// applies only if `returned` is true, which means that the body has run to its end.
    pub(crate) async fn leave(self, returned: bool) -> ReleaseOutcome {
        let others = self.others.into_iter().map(|entry| entry.leave(returned));
        let outcomes = join(self.innermost.leave(returned), join_all(others)).await;
        let each = std::iter::once(&outcomes.0).chain(&outcomes.1);
        self.record.left(each);
        outcomes.0
    }

    /// Leaves all locks at the same time after a body has returned. Returns the outcome for each of `holds`, in the
    /// order of `holds`.
    pub(crate) async fn leave_each(self, holds: &[Arc<HoldState>]) -> Vec<ReleaseOutcome> {
        let entries = self.others.into_iter().chain([self.innermost]);
        let left = entries.map(async |entry| {
            let name = entry.hold().name.clone();
            (name, entry.leave(true).await)
        });
        let left: HashMap<_, _> = join_all(left).await.into_iter().collect();
        self.record.left(left.values());
        let outcomes = holds.iter().filter_map(|hold| left.get(&hold.name));
        outcomes.copied().collect()
    }
}

/// Completes when one of the entered locks is lost. Never completes if `entries` is empty.
pub(crate) async fn loss_of_one(entries: &[Entry]) {
    if entries.is_empty() {
        return pending().await;
    }
    select_all(
        entries
            .iter()
            .map(|entry| Box::pin(entry.hold().wait_for_loss())),
    )
    .await;
}
