//! The tests of the fault matrix, against real servers. If a row of the matrix says that a process is killed or
//! stopped, the row's test kills or stops a real process.
//!
//! In the bounds of the matrix, ε is the tolerance that is added to a promised time, because a loaded machine can be
//! slower.

mod cohort;
mod fixture;
mod holder;
mod network;
mod quorum;
mod server;
mod waiters;
