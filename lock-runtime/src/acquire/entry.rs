//! What a call has entered: one lock, or several.

use std::{collections::HashMap, future::pending, sync::Arc, time::Duration};

use futures_util::future::{join, join_all, select_all};
use lock_core::{backend::BoxFuture, error::LockError, key::LockName, lease::Moment};

use crate::{
    acquire::reentry::{Frame, Level, MultiCall},
    lease::{
        hold::{HoldState, RenewalDemand},
        release::{EntryTicket, ReleaseOutcome},
        siblings::Turn,
    },
};

/// One entered lock. Dropped, it is left in the background.
#[derive(Debug)]
pub(crate) struct Entry {
    // In the order in which they end: the demand for renewal, the entry itself, the level with the turn among siblings.
    cover: Option<RenewalDemand>,
    ticket: EntryTicket,
    level: Level,
    /// Whether this entry began the hold.
    began: bool,
    /// Left before, the lock stays taken until then.
    retain_until: Option<Moment>,
}

impl Entry {
    /// The entry that began a hold.
    pub(crate) fn began(ticket: EntryTicket) -> Self {
        Self {
            cover: None,
            ticket,
            level: Level::default(),
            began: true,
            retain_until: None,
        }
    }

    /// One more entry into a hold.
    pub(crate) fn again(ticket: EntryTicket, level: Level, cover: Option<RenewalDemand>) -> Self {
        Self {
            cover,
            level,
            began: false,
            ..Self::began(ticket)
        }
    }

    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.ticket.hold()
    }

    /// What those nested in this entry see around them.
    pub(crate) fn frame(
        &self,
        outer: Option<Arc<Frame>>,
        several: Option<Arc<MultiCall>>,
    ) -> Arc<Frame> {
        Frame::new(self.hold().clone(), self.level.clone(), outer, several)
    }

    /// Whether this entry began the hold.
    pub(crate) fn has_begun(&self) -> bool {
        self.began
    }

    /// Its body begins later. The lock, or the turn, passes on if the body has not begun by then, and an entry into a
    /// hold of others does not keep it meanwhile.
    pub(crate) fn wait_for_body(&mut self, until: Moment) {
        if self.began {
            self.hold().wait_for_body(until);
            return;
        }
        if let Some(turn) = self.level.turn() {
            turn.wait_for_body(until);
        }
        self.ticket.step_out();
    }

    /// Its body begins in its turn, if it has to have one. False if the turn has passed on.
    pub(crate) fn take_turn(&self) -> bool {
        self.level.turn().is_none_or(Turn::begin_body)
    }

    /// Its body begins in a hold of others. False if that has ended.
    pub(crate) fn step_in(&mut self) -> bool {
        self.ticket.step_in()
    }

    /// Whether it demands a renewal of its own.
    pub(crate) fn is_covered(&self) -> bool {
        self.cover.is_some()
    }

    /// Replaces the demand for renewal.
    pub(crate) fn set_cover(&mut self, cover: Option<RenewalDemand>) {
        self.cover = cover;
    }

    /// Leaves, and releases if nobody else is inside; later, if a body has returned that wants it so.
    async fn leave(self, returned: bool) -> ReleaseOutcome {
        if let Some(until) = self.retain_until.filter(|_| returned) {
            self.hold().retain_until(until);
        }
        drop(self.cover);
        let outcome = self.ticket.leave().await;
        drop(self.level);
        outcome
    }
}

/// All that one call has entered.
#[derive(Debug)]
pub(crate) struct Entered {
    /// Entered last: what is nested in the call is nested in this.
    innermost: Entry,
    others: Vec<Entry>,
}

impl Entered {
    pub(crate) fn one(entry: Entry) -> Self {
        Self {
            innermost: entry,
            others: Vec::new(),
        }
    }

    /// In the order in which they were entered, one at least.
    pub(crate) fn several(mut entries: Vec<Entry>) -> Self {
        Self {
            innermost: entries.pop().expect("a call enters one lock at least"),
            others: entries,
        }
    }

    /// Left before `time` has passed from now, the locks stay taken until then.
    pub(crate) fn for_at_least(mut self, time: Duration) -> Self {
        if !time.is_zero() {
            for entry in std::iter::once(&mut self.innermost).chain(&mut self.others) {
                entry.retain_until = Some(entry.ticket.hold().backend().now() + time);
            }
        }
        self
    }

    /// The holds of these names, each as often as it is named.
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

    /// What they are held for begins now.
    pub(crate) fn begin_body(&self) {
        self.entries().for_each(|entry| entry.hold().begin_body());
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::once(&self.innermost).chain(&self.others)
    }

    /// The hold entered last.
    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.innermost.hold()
    }

    /// What the body of a call with one lock sees around it.
    pub(crate) fn frame(&self, outer: Option<Arc<Frame>>) -> Arc<Frame> {
        self.innermost.frame(outer, None)
    }

    /// What a body sees around it that these locks are lent to, in the order in which they were entered.
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

    /// The loss of one of them, if there is one by now. Each is looked at, for a loss is logged when it is seen.
    pub(crate) fn loss(&self) -> Option<LockError> {
        self.entries()
            .filter_map(|entry| entry.hold().not_lost().err())
            .reduce(|first, _| first)
    }

    /// Whether one of them is lost by now.
    #[inline(never)]
    pub(crate) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Ends when one of them is lost.
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

    /// Leaves all of them at once. `returned` says whether a body has, and did not lose them. What became of the one that was
    /// entered last.
    pub(crate) async fn leave(self, returned: bool) -> ReleaseOutcome {
        let others = self.others.into_iter().map(|entry| entry.leave(returned));
        join(self.innermost.leave(returned), join_all(others))
            .await
            .0
    }

    /// Leaves all of them at once, a body having returned, and says what became of each, in the order of these holds.
    pub(crate) async fn leave_each(self, holds: &[Arc<HoldState>]) -> Vec<ReleaseOutcome> {
        let entries = self.others.into_iter().chain([self.innermost]);
        let left = entries.map(async |entry| {
            let name = entry.hold().name.clone();
            (name, entry.leave(true).await)
        });
        let left: HashMap<_, _> = join_all(left).await.into_iter().collect();
        let outcomes = holds.iter().filter_map(|hold| left.get(&hold.name));
        outcomes.copied().collect()
    }
}

/// Ends when one of them is lost; never, without any.
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
