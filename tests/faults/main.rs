//! Rows of the fault matrix, against real servers and, where a row says kill or stop, real processes.
//!
//! ε is what a loaded machine may add to a time that is promised.

mod cohort;
mod fixture;
mod holder;
mod network;
mod quorum;
mod server;
mod waiters;
