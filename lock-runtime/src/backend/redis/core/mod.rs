//! The core of the engine for one server or one Redis Cluster: which callers wait for which lock, which of them share a grant,
//! and whose turn it is.
//!
//! The core only makes decisions: it uses no I/O, no clock, no mutex, no waker and no tokio. An input is a call of a method,
//! with the present time if it matters. The effects are values that the method returns, and callers whose wait is over
//! ([`Lines::take_outgoing`](waiting::Lines::take_outgoing)). `session/shared_core.rs` keeps the core under one mutex, and
//! tells these callers after it has unlocked the mutex.
//!
//! # States of an acquisition
//! An acquisition has one owner name at a time. Its requests and answers are in [`acquisition`], its place in [`waiting`],
//! and its turn in [`cohorts`]. `queue/attempt.rs` carries out the steps.
//!
//! | state | what is known | what ends it |
//! |---|---|---|
//! | unsent | nothing is on the server under this name | it sends a request: *asked*; others of its session wait already, and the session sends one for it: *waiting* |
//! | asked | its own request is under way, so the server may have granted the lock or queued the caller | the answer: *granted*, *waiting* or *busy*; the connection breaks: *asked* again under the same name, over the next connection |
//! | waiting | its place, if an answer has named it; each repeated request names the same place | its *turn*; the connection breaks: the session sends the request again; another server stores the lock, or the session ends: *unsent* under a new name, with the old place; `wait` ends: *leaving* |
//! | turn | the token and the local deadline of a grant that it shares | it reads the grant in time: *granted*; its runtime does not run, or the grant is over: *missed* |
//! | missed | the turn has passed to the next member | the next poll of the caller: *unsent* under a new name, with the old place |
//! | leaving | a request to leave is under way | the answer: *busy*, or *granted* if the lock was free; the connection breaks: the request is sent again |
//! | granted | the caller holds the lock or is offered it | the hold ends; the caller has not taken the lock in time: the lock is released, and its next poll makes it *unsent* under a new name, with the place it had, or *busy* if its `wait` is over. Each of the next three offers lasts a tenth of the one before (`claim_after`) |
//! | busy | nothing is on the server under this name | – |
//!
//! An acquisition can be dropped in each state. In *unsent*, *granted* and *busy*, nothing is left to do: nothing was sent, or the
//! hold releases itself. In *missed*, the old name is removed already. In the other states, `queue/cleanup.rs` removes the owner
//! name from the server in the background: it waits for a request under way, gives its turn back if it has one, and sends a
//! request to leave if it has none or if a request is unanswered. This request follows the newest request over the same
//! connection; if that connection has broken, it goes over the next one, after the server has closed the first one. A client that
//! may not close its connections on the server repeats the request until the old one can have no effect any longer.
//!
//! A grant that the server sends to callers that wait is in one of the states of [`cohort`]. A grant in the answer to an
//! acquisition's own request belongs to no cohort. An answer about a turn that has passed gives nobody a turn.
//!
//! # Another server
//! In a Redis Cluster, a lock whose primary is replaced or whose slot moves is served by another session. The callers that wait
//! for it are dismissed, and wait again in that session, under new names at their old places. A single server, or the primary of a
//! group of Sentinels, keeps its session: over the new connection, the session asks again for its callers, under the same names.
//! If the new primary has the grant, the cohort goes on. If an answer shows that it does not, the cohort ends
//! ([`Core::has_lost`]). The member that has the turn keeps it until then, or until its next renewal, which follows soon. If the new
//! server sends another grant meanwhile, the old one is `replaced`: no turn passes by it any more.

pub(crate) use self::{
    cohorts::Core,
    waiting::{Ended, Link, Parts, Stored},
};

pub(crate) mod acquisition;
pub(crate) mod cohort;
pub(crate) mod cohorts;
pub(crate) mod waiting;
