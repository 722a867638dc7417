//! What a call has entered: one lock, or several.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::{join, join_all, select_all};
use lock_core::{backend::BoxFuture, error::LockError, key::LockName, lease::Moment};

use crate::{
    hold::{Cover, EntryDuty, HoldState},
    reentry::Frame,
};

/// One entered lock. Dropped, it is left in the background.
#[derive(Debug)]
pub(crate) struct Entry {
    // In the order in which they end: the demand for renewal, the entry itself, the frame with the turn among siblings.
    cover: Option<Cover>,
    duty: EntryDuty,
    frame: Arc<Frame>,
    /// Whether this entry began the hold.
    began: bool,
    /// Left before, the lock stays taken until then.
    keep_until: Option<Moment>,
}

impl Entry {
    /// The entry that began a hold.
    pub(crate) fn began(duty: EntryDuty, frame: Arc<Frame>) -> Self {
        Self {
            cover: None,
            duty,
            frame,
            began: true,
            keep_until: None,
        }
    }

    /// One more entry into a hold.
    pub(crate) fn again(duty: EntryDuty, frame: Arc<Frame>, cover: Option<Cover>) -> Self {
        Self {
            cover,
            began: false,
            ..Self::began(duty, frame)
        }
    }

    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.duty.hold()
    }

    /// What those nested in this entry see around them.
    pub(crate) fn frame(&self) -> &Arc<Frame> {
        &self.frame
    }

    /// Whether this entry began the hold.
    pub(crate) fn has_begun(&self) -> bool {
        self.began
    }

    /// Whether it demands a renewal of its own.
    pub(crate) fn is_covered(&self) -> bool {
        self.cover.is_some()
    }

    /// Replaces the demand for renewal.
    pub(crate) fn set_cover(&mut self, cover: Option<Cover>) {
        self.cover = cover;
    }

    /// Leaves, and releases if nobody else is inside; later, if a body has returned that wants it so.
    async fn leave(self, returned: bool) {
        if let Some(until) = self.keep_until.filter(|_| returned) {
            self.hold().keep_until(until);
        }
        drop(self.cover);
        self.duty.leave().await;
        drop(self.frame);
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
                entry.keep_until = Some(entry.duty.hold().backend().now() + time);
            }
        }
        self
    }

    /// The holds of these names, each as often as it is named.
    pub(crate) fn named<'a>(
        &self,
        names: impl Iterator<Item = &'a LockName>,
    ) -> Vec<Arc<HoldState>> {
        let of = |name: &LockName| {
            let mut holds = self.entries().map(Entry::hold);
            holds.find(|hold| hold.name == *name).cloned()
        };
        names.filter_map(of).collect()
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::once(&self.innermost).chain(&self.others)
    }

    /// The hold entered last.
    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.innermost.hold()
    }

    /// What those nested in the call see around them.
    pub(crate) fn frame(&self) -> &Arc<Frame> {
        self.innermost.frame()
    }

    /// The loss of one of them, if there is one by now. Each is looked at, for a loss is logged when it is seen.
    pub(crate) fn loss(&self) -> Option<LockError> {
        self.entries()
            .filter_map(|entry| entry.hold().not_lost().err())
            .reduce(|first, _| first)
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

    /// Leaves all of them at once. `returned` says whether a body has, and did not lose them.
    pub(crate) async fn leave(self, returned: bool) {
        let others = self.others.into_iter().map(|entry| entry.leave(returned));
        join(self.innermost.leave(returned), join_all(others)).await;
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
