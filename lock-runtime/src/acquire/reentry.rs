//! Re-entry along the call stack: finds the hold that encloses the current code.
//!
//! A frame describes one lock that a call has entered. A thread-local variable contains the frame of the innermost body
//! that the thread is polling or dropping. The engine sets this variable around every poll of a body, and around the
//! drop of the body. A nested call therefore finds the calls that enclose it, but not the sibling calls that the same
//! task polls.
//!
//! A frame is visible only to the task that polls the frame's body. A task that the body drives with a `LocalSet` or
//! another runtime has its own task id, and does not see the body's frame. A future that the body drives by `block_on`
//! has no task id of its own. Tokio reports the id of the body for this future, so the future sees the body's frame.

use std::{
    cell::RefCell,
    fmt,
    iter::successors,
    sync::{Arc, Mutex, OnceLock, Weak},
};

use lock_core::{key::LockName, lease::Moment};
use tokio::task;

use crate::{
    background::lock,
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

/// The frame of the innermost body around the code that a thread runs, and the task to which this frame is visible.
struct Enclosing {
    frame: Arc<Frame>,
    /// The task that polls the body; `None` if the body is not polled by a tokio task.
    task: Option<task::Id>,
}

/// Returns the frame of the innermost body that encloses the current code, or `None` outside any body.
pub(crate) fn enclosing() -> Option<Arc<Frame>> {
    let here = task::try_id();
    let frame = ENCLOSING.try_with(|enclosing| {
        let enclosing = enclosing.borrow();
        let enclosing = enclosing.as_ref().filter(|around| around.task == here);
        enclosing.map(|around| around.frame.clone())
    });
    frame.ok().flatten()
}

/// Makes [`enclosing`] return `frame` until the returned scope is dropped. Has no effect on a thread that is exiting.
#[must_use = "the frame is set until the scope is dropped"]
#[inline(never)]
pub(crate) fn enter(frame: Option<Arc<Frame>>) -> Scope {
    let task = task::try_id();
    let enclosing = frame.map(|frame| Enclosing { frame, task });
    let outer = ENCLOSING.try_with(|around| around.replace(enclosing));
    Scope { outer: outer.ok() }
}

/// Dropping this value makes [`enclosing`] return the previous frame again.
pub(crate) struct Scope {
    outer: Option<Option<Enclosing>>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(outer) = self.outer.take() {
            // The inner frame is dropped only after the borrow has ended, so that the frame's destructor can borrow
            // `ENCLOSING`.
            let inner = ENCLOSING.try_with(|around| around.replace(outer));
            drop(inner);
        }
    }
}

/// The nesting level of a call inside a hold; `None` is the outermost level. Calls nested in the same call take turns,
/// so two calls that are inside the hold at the same time are never at the same level.
#[derive(Debug, Clone, Default)]
pub(crate) struct Level(Option<Arc<Inner>>);

/// The data of a nesting level other than the outermost level.
#[derive(Debug)]
struct Inner {
    depth: usize,
    turns: Turns,
    /// The turn of the call at this level. Siblings (calls nested in the same call) take turns. This turn ends when the
    /// call at this level and all calls nested in it have ended.
    own_turn: Turn,
    /// The moment at which the renewals for the call at this level end; `None` if they end with this call. No call
    /// nested in this call demands renewals after this moment.
    limit: Option<Moment>,
    outer: Level,
}

impl Level {
    /// Creates the level of a call that is nested directly in the call at this level. `own_turn` is the turn of the
    /// nested call among its siblings, and `limit` is the moment at which the renewals for the nested call end.
    pub(crate) fn inner(&self, own_turn: Turn, limit: Option<Moment>) -> Self {
        Self(Some(Arc::new(Inner {
            depth: self.depth() + 1,
            turns: Turns::default(),
            own_turn,
            limit,
            outer: self.clone(),
        })))
    }

    /// Returns the turn of the call at this level among its siblings; `None` for the outermost call.
    pub(crate) fn turn(&self) -> Option<&Turn> {
        self.0.as_ref().map(|inner| &inner.own_turn)
    }

    /// Returns the moment at which the renewals for the call at this level of `hold` end; `None` if they end with this
    /// call.
    pub(crate) fn limit(&self, hold: &HoldState) -> Option<Moment> {
        match &self.0 {
            Some(inner) => inner.limit,
            None => hold.limit(),
        }
    }

    /// Returns the moment at which the renewals for the enclosing call end. The enclosing call is the call that
    /// directly encloses the call at this level of `hold`.
    pub(crate) fn enclosing_limit(&self, hold: &HoldState) -> Option<Moment> {
        self.0.as_ref().and_then(|inner| inner.outer.limit(hold))
    }

    fn depth(&self) -> usize {
        self.0.as_ref().map_or(0, |inner| inner.depth)
    }

    fn is(&self, other: &Self) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

impl Drop for Inner {
    /// Drops the outer levels iteratively, because recursion could overflow the stack.
    fn drop(&mut self) {
        let mut outer = self.outer.0.take();
        while let Some(level) = outer {
            outer = Arc::into_inner(level).and_then(|mut level| level.outer.0.take());
        }
    }
}

/// The state of a call with several locks, shared by all frames of the call.
#[derive(Debug, Default)]
pub(crate) struct MultiCall {
    /// The call's holds in the order of its keys. Empty until the call has entered all of its locks.
    holds: OnceLock<Vec<Arc<HoldState>>>,
}

impl MultiCall {
    /// Stores the call's holds, so that the body of the call can find them.
    pub(crate) fn show(&self, holds: Vec<Arc<HoldState>>) {
        let shown = self.holds.set(holds);
        debug_assert!(shown.is_ok(), "a call is entered once");
    }
}

/// Whether a hold belongs to this client.
fn is_of(hold: &HoldState, shared: &Arc<Shared>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(hold.host()), Arc::as_ptr(shared))
}

/// One lock that a call has entered, in the form in which nested calls find it.
pub(crate) struct Frame {
    pub(crate) hold: Arc<HoldState>,
    level: Level,
    /// Whether the frame belongs to a body that a guard's `run` method runs. A guard's body needs no turn among
    /// siblings, because the body runs inside the guard's own entry.
    lent: bool,
    /// The state that all frames of a call with several locks share; `None` for a call with one lock.
    several: Option<Arc<MultiCall>>,
    outer: Option<Arc<Self>>,
    /// A weak reference to the value that keeps the holds of this frame and of the frames around it alive. The
    /// reference upgrades to `None` while no `in_current_hold` future needs the frame.
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
    /// Returns the moment at which the renewals for this frame's call end; `None` if they end with the call. No nested
    /// call demands renewals after this moment.
    pub(crate) fn limit(&self) -> Option<Moment> {
        self.level.limit(&self.hold)
    }

    /// Creates the frame of a call that has entered a lock.
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

    /// Creates the frame for code that runs inside a guard's hold. Calls nested in the code take turns at the guard's
    /// level. If a call that encloses the code has re-entered the guard's hold, the nested calls take turns at the
    /// deeper level of that re-entry instead.
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

    /// Returns the queue in which the calls nested in this frame's call wait for their turns.
    pub(crate) fn turns(&self) -> &Turns {
        let inner = self.level.0.as_ref();
        inner.map_or(&self.hold.turns, |inner| &inner.turns)
    }

    fn chain(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        successors(Some(self), |frame| frame.outer.as_ref())
    }

    /// Returns the innermost frame of the lock `name`, among this frame and the frames around it.
    pub(crate) fn find(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        name: &LockName,
    ) -> Option<&Arc<Self>> {
        self.chain()
            .find(|frame| frame.hold.name == *name && is_of(&frame.hold, shared))
    }

    /// Whether this frame belongs to the call whose entry created the nesting level of `other`.
    fn has_entered_level_of(&self, other: &Self) -> bool {
        !self.lent && Arc::ptr_eq(&self.hold, &other.hold) && self.level.is(&other.level)
    }

    fn is_of_the_same_call(&self, other: &Self) -> bool {
        match (&self.several, &other.several) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => std::ptr::eq(self, other),
        }
    }

    /// Returns whether a call nested in this frame breaks the lock order if the call waits for the lock `name`. The
    /// lock order is the order of the lock names, also across clients, because two clients can use the same server. The
    /// call breaks the lock order if an enclosing call holds a lock with a greater name, and at least one of the two
    /// calls has several locks.
    ///
    /// The frames in the following two cases are not checked. This call can wait for `name` only behind calls that run
    /// inside the same frames, and such calls never wait for the locks of these frames:
    /// - If an enclosing call has entered the lock `name`: the frames of that enclosing call, and the frames around
    ///   them. Every other call that waits for a turn in the hold of `name` is inside these frames too.
    /// - If a guard whose `run` encloses this frame holds the lock `name`: the frames of the guard's own locks. Every
    ///   body that runs in this guard is inside these locks. The frames around `run` are checked, because another body
    ///   that runs in the same guard can be inside other calls.
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

    /// Returns the state shared by the frames of this call; `None` if the call has one lock.
    pub(crate) fn several(&self) -> Option<&Arc<MultiCall>> {
        self.several.as_ref()
    }

    /// Returns all holds of this frame's call.
    pub(crate) fn holds(&self) -> &[Arc<HoldState>] {
        let several = self.several.as_ref();
        several
            .and_then(|several| several.holds.get())
            .map_or(std::slice::from_ref(&self.hold), Vec::as_slice)
    }
}

impl Drop for Frame {
    /// Drops the outer frames iteratively, because recursion could overflow the stack.
    fn drop(&mut self) {
        let mut outer = self.outer.take();
        while let Some(frame) = outer {
            outer = Arc::into_inner(frame).and_then(|mut frame| frame.outer.take());
        }
    }
}

/// Keeps a hold and the holds around it alive until every `in_current_hold` future that needs them has completed or is
/// dropped.
pub(crate) struct Stay {
    /// Keeps the hold alive; `None` if the hold had already ended.
    _ticket: Option<EntryTicket>,
    outer: Option<Arc<Self>>,
}

impl Stay {
    /// Keeps the holds of this frame and of the frames around it alive. If another `in_current_hold` future already has
    /// a `Stay` for one of these frames, this function uses that `Stay` for the frame and for the frames around it. If
    /// each task of a chain spawns the next task, the cost of a task therefore does not grow with the length of the
    /// chain.
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
        innermost.expect("a chain has at least one frame")
    }
}

impl Drop for Stay {
    /// Drops the outer `Stay` values iteratively, because recursion could overflow the stack.
    fn drop(&mut self) {
        let mut outer = self.outer.take();
        while let Some(stay) = outer {
            outer = Arc::into_inner(stay).and_then(|mut stay| stay.outer.take());
        }
    }
}
