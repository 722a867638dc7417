//! Rows of the fault matrix, against real servers and, where a row says kill or stop, real processes.
//!
//! ε is what a loaded machine may add to a time that is promised.

mod block_losses;
mod block_turns;
mod blocks;
mod calls;
mod connect;
mod crowd;
mod forged;
mod late_leases;
mod leaving;
mod looks;
mod many_holds;
mod outages;
mod processes;
mod redlock;
mod replies;
mod scene;
mod server;
mod shutdown;
mod slow_callers;
mod strangers;
mod waiters;
