//! Runs the real engine and the real scripts in a simulated world with simulated time. A seed determines everything
//! that happens in this world: the delays, the faults and the calls.

use mimalloc::MiMalloc;

pub mod callers;
pub mod chance;
pub mod corpus;
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

/// The engine and Lua allocate many small objects during a run. With this allocator, a run takes less time than with
/// the allocator of the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
