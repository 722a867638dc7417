//! Runs the real engine and the real scripts in a simulated world with simulated time. A seed determines all that
//! happens in it: the delays, the faults and the calls.

pub mod callers;
pub mod chance;
pub mod faults;
pub mod history;
pub mod late;
pub mod ledger;
pub mod network;
mod panics;
pub mod plan;
pub mod process;
pub mod redis;
pub mod shrink;
pub mod stop;
mod topology;
mod watchdog;
pub mod world;
