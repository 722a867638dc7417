//! The core of the engine for one server: which callers wait for which lock, which of them share a grant, and whose turn it
//! is.
//!
//! The core only makes decisions: it uses no I/O, no clock, no mutex, no waker and no tokio. An input is a call of a method,
//! with the present time if it matters. The effects are values that the method returns, and callers whose wait is over
//! ([`Lines::take_outgoing`](waiting::Lines::take_outgoing)). The engine stores the core under one mutex ([`SharedCore`](super::session::SharedCore)), and tells
//! these callers after it has unlocked the mutex.
//!
//! # States of an acquisition
//! An acquisition has one owner name at a time, and under each owner name it goes through these states. Its own requests are
//! in [`acquisition`], its place in the queue in [`waiting`], and its turn in [`cohorts`].
//!
//! | state | what is known | what ends it |
//! |---|---|---|
//! | unsent | nothing is on the server | its own request, or that of its session: *asked* |
//! | asked | the answer is under way; the server may have granted the lock or queued the caller | *held*, *queued*, busy: *settled*; the connection breaks: *asked* again, under the same name |
//! | queued | a place, which the next request names again | its *turn*; an error or the end of `wait`: *leaving* |
//! | has its turn | the token and the local deadline of a grant | its acquisition reads the grant in time: *held*; otherwise *missed* |
//! | missed | the turn has passed on, because the caller's runtime does not run or the grant is over | the next poll of the caller: *unsent* under a new name, with the old place |
//! | leaving | a request to leave is under way | the answer: *settled*, or *held* if the lock was free |
//! | settled | nothing is left on the server under this name | – |
//!
//! A grant by which a caller holds the lock is in one of the states of [`cohort`]. An answer that comes late changes what is
//! known, but gives nobody a turn.

pub(crate) use self::{
    cohorts::Core,
    waiting::{Ended, Link, Parts, Stored},
};

pub(crate) mod acquisition;
pub(crate) mod cohort;
pub(crate) mod cohorts;
pub(crate) mod waiting;
