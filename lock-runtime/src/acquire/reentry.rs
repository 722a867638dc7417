//! Re-entry along the call stack: which hold encloses the code that runs right now.
//!
//! The engine sets the innermost frame around every poll of a guarded body, and around its drop. So a nested call sees
//! the calls that enclose it, and a sibling polled by the same task does not see its sibling. The frame counts only for
//! the task that polls the body: a task that is driven inside the body, by a `LocalSet` or another runtime, has an id of
//! its own. A future that the body drives by `block_on` has none, and is on the body's call stack.

use std::{
    cell::RefCell,
    fmt,
    iter::successors,
    sync::{Arc, Mutex, OnceLock, Weak},
};

use lock_core::key::LockName;
use tokio::task;

use crate::{
    background::sync::lock,
    lease::{
        hold::HoldState,
        release::EntryTicket,
        shared::Shared,
        siblings::{Turn, Turns},
    },
};

thread_local! {
    static ENCLOSING: RefCell<Option<Enclosing>> = const { RefCell::new(None) };
}

/// The frame around the code of one task.
struct Enclosing {
    frame: Arc<Frame>,
    /// The task that polls; none outside tokio's tasks.
    task: Option<task::Id>,
}

/// The frame around the code that runs right now.
pub(crate) fn enclosing() -> Option<Arc<Frame>> {
    let here = task::try_id();
    let frame = ENCLOSING.try_with(|enclosing| {
        let enclosing = enclosing.borrow();
        let enclosing = enclosing.as_ref().filter(|around| around.task == here);
        enclosing.map(|around| around.frame.clone())
    });
    frame.ok().flatten()
}

/// Sets the frame around the code that runs until the scope is dropped. A thread that is ending has no frames.
#[must_use = "the frame is set until the scope is dropped"]
#[inline(never)]
pub(crate) fn enter(frame: Option<Arc<Frame>>) -> Scope {
    let task = task::try_id();
    let enclosing = frame.map(|frame| Enclosing { frame, task });
    let outer = ENCLOSING.try_with(|around| around.replace(enclosing));
    Scope { outer: outer.ok() }
}

/// Restores the frame that was set before.
pub(crate) struct Scope {
    outer: Option<Option<Enclosing>>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(outer) = self.outer.take() {
            // The inner frame is dropped outside of the borrow.
            let inner = ENCLOSING.try_with(|around| around.replace(outer));
            drop(inner);
        }
    }
}

/// The depth of an entry inside its hold. The entries that are inside at one time are at levels that contain each
/// other, because each of them has a turn of the level around it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Level(Option<Arc<Inner>>);

/// A level inside another one.
#[derive(Debug)]
struct Inner {
    depth: usize,
    turns: Turns,
    /// The turn at the outer level. It ends with the last call nested in this level.
    own_turn: Turn,
    outer: Level,
}

impl Level {
    /// The level of an entry that has this turn of this level.
    pub(crate) fn inner(&self, own_turn: Turn) -> Self {
        Self(Some(Arc::new(Inner {
            depth: self.depth() + 1,
            turns: Turns::default(),
            own_turn,
            outer: self.clone(),
        })))
    }

    /// The turn that an entry at this level has; none at the outermost one.
    pub(crate) fn turn(&self) -> Option<&Turn> {
        self.0.as_ref().map(|inner| &inner.own_turn)
    }

    fn depth(&self) -> usize {
        self.0.as_ref().map_or(0, |inner| inner.depth)
    }

    fn is(&self, other: &Self) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

impl Drop for Inner {
    /// Drops the outer levels one after the other: there may be more of them than a stack has room for.
    fn drop(&mut self) {
        let mut outer = self.outer.0.take();
        while let Some(level) = outer {
            outer = Arc::into_inner(level).and_then(|mut level| level.outer.0.take());
        }
    }
}

/// A call with several locks, which it takes in the order of their names.
#[derive(Debug, Default)]
pub(crate) struct MultiCall {
    /// Its holds in the order of its keys, once it has entered all of them.
    holds: OnceLock<Vec<Arc<HoldState>>>,
}

impl MultiCall {
    /// Tells the call's own body which holds it has.
    pub(crate) fn show(&self, holds: Vec<Arc<HoldState>>) {
        let shown = self.holds.set(holds);
        debug_assert!(shown.is_ok(), "a call is entered once");
    }
}

/// Whether a hold is of this client.
fn is_of(hold: &HoldState, shared: &Arc<Shared>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(hold.host()), Arc::as_ptr(shared))
}

/// One entered call, as those nested in it see it.
pub(crate) struct Frame {
    pub(crate) hold: Arc<HoldState>,
    level: Level,
    /// Whether a guard lends its level to the call, which has not entered it.
    lent: bool,
    /// What the frames of one call have in common; `None` where it has one lock, wherever its author nests it.
    several: Option<Arc<MultiCall>>,
    outer: Option<Arc<Self>>,
    /// What keeps the holds from here outwards, while tasks that were taken along need that.
    stay: Mutex<Weak<Stay>>,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}

impl Frame {
    /// The frame of a call that has entered.
    pub(crate) fn new(
        hold: Arc<HoldState>,
        level: Level,
        outer: Option<Arc<Self>>,
        several: Option<Arc<MultiCall>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            hold,
            level,
            lent: false,
            several,
            outer,
            stay: Mutex::default(),
        })
    }

    /// The frame of what runs inside a guard's hold. It takes its turns at the innermost level that it is inside of:
    /// that of the guard, or that of an enclosing call which has entered the guard's hold since.
    pub(crate) fn lent(
        hold: Arc<HoldState>,
        level: Level,
        outer: Option<Arc<Self>>,
        several: Option<Arc<MultiCall>>,
    ) -> Arc<Self> {
        let enclosing = outer.as_ref().and_then(|frame| {
            let mut chain = frame.chain();
            chain.find(|frame| Arc::ptr_eq(&frame.hold, &hold))
        });
        let level = enclosing
            .map(|frame| frame.level.clone())
            .filter(|enclosing| enclosing.depth() > level.depth())
            .unwrap_or(level);
        Arc::new(Self {
            hold,
            level,
            lent: true,
            several,
            outer,
            stay: Mutex::default(),
        })
    }

    pub(crate) fn level(&self) -> &Level {
        &self.level
    }

    /// The turns of the calls nested in this one.
    pub(crate) fn turns(&self) -> &Turns {
        let inner = self.level.0.as_ref();
        inner.map_or(&self.hold.turns, |inner| &inner.turns)
    }

    fn chain(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        successors(Some(self), |frame| frame.outer.as_ref())
    }

    /// The innermost frame from here outwards that is inside this lock.
    pub(crate) fn find(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        name: &LockName,
    ) -> Option<&Arc<Self>> {
        self.chain()
            .find(|frame| frame.hold.name == *name && is_of(&frame.hold, shared))
    }

    /// Whether this is the frame of the call that has entered the other's level.
    fn has_entered_level_of(&self, other: &Self) -> bool {
        !self.lent && Arc::ptr_eq(&self.hold, &other.hold) && self.level.is(&other.level)
    }

    fn is_of_the_same_call(&self, other: &Self) -> bool {
        match (&self.several, &other.several) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => std::ptr::eq(self, other),
        }
    }

    /// Whether to wait for this lock, from here, would be out of the order of names: one that comes later is held
    /// already, and it or this one belongs to a call with several. From the call outwards that has entered this very
    /// lock, nothing counts: all who take turns there are inside that too. The callers of a guard are not, but all of
    /// them are inside the guard's other locks. Two clients may be of one server, so the order is one for all.
    pub(crate) fn is_out_of_order(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        name: &LockName,
        is_one_of_several: bool,
    ) -> bool {
        let found = self.find(shared, name);
        let inside =
            found.and_then(|found| self.chain().find(|frame| frame.has_entered_level_of(found)));
        self.chain()
            .take_while(|frame| inside.is_none_or(|inside| !frame.is_of_the_same_call(inside)))
            .filter(|frame| found.is_none_or(|found| !frame.is_of_the_same_call(found)))
            .filter(|frame| is_one_of_several || frame.several.is_some())
            .any(|frame| frame.hold.name > *name)
    }

    /// What this frame has in common with the others of its call; `None` if the call has one lock.
    pub(crate) fn several(&self) -> Option<&Arc<MultiCall>> {
        self.several.as_ref()
    }

    /// The holds of the call whose innermost frame this is.
    pub(crate) fn holds(&self) -> &[Arc<HoldState>] {
        let several = self.several.as_ref();
        several
            .and_then(|several| several.holds.get())
            .map_or(std::slice::from_ref(&self.hold), Vec::as_slice)
    }
}

impl Drop for Frame {
    /// Drops the outer frames one after the other: there may be more of them than a stack has room for.
    fn drop(&mut self) {
        let mut outer = self.outer.take();
        while let Some(frame) = outer {
            outer = Arc::into_inner(frame).and_then(|mut frame| frame.outer.take());
        }
    }
}

/// Keeps a hold, and those around it, until everything is dropped that was taken along.
pub(crate) struct Stay {
    /// None if the hold had ended by then.
    _ticket: Option<EntryTicket>,
    outer: Option<Arc<Self>>,
}

impl Stay {
    /// Keeps the holds from this frame outwards. What another future that was taken along keeps already is shared: a
    /// chain of tasks, each taken along by the one before, costs the same at each step.
    pub(crate) fn of(frame: &Arc<Frame>) -> Arc<Self> {
        let mut unkept = Vec::new();
        let mut kept = None;
        for frame in frame.chain() {
            kept = lock(&frame.stay).upgrade();
            if kept.is_some() {
                break;
            }
            unkept.push(frame);
        }
        let innermost = unkept.into_iter().rev().fold(kept, |outer, frame| {
            let stay = Arc::new(Self {
                _ticket: EntryTicket::again(&frame.hold),
                outer,
            });
            *lock(&frame.stay) = Arc::downgrade(&stay);
            Some(stay)
        });
        innermost.expect("a chain has one frame at least")
    }
}

impl Drop for Stay {
    /// Drops the outer ones one after the other: there may be more of them than a stack has room for.
    fn drop(&mut self) {
        let mut outer = self.outer.take();
        while let Some(stay) = outer {
            outer = Arc::into_inner(stay).and_then(|mut stay| stay.outer.take());
        }
    }
}
