//! Rows of the fault matrix, against real servers. Rows that say killed or stopped use real processes.
//!
//! ε is the time that a loaded machine may add to a promised time.

mod cohort;
mod fixture;
mod holder;
mod network;
mod quorum;
mod server;
mod waiters;
