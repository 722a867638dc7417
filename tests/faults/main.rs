//! The tests of the fault matrix, against real servers. If a row says that a process is killed or stopped, the test of
//! that row uses a real process.
//!
//! In the bounds of the matrix, ε is the time that a loaded machine may add to a promised time.

mod cohort;
mod fixture;
mod holder;
mod network;
mod quorum;
mod server;
mod waiters;
