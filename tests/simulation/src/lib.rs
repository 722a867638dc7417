//! A deterministic world for the real engine and scripts. One seed determines time, network, faults and callers.

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
mod watchdog;
pub mod world;
