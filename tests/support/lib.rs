//! Real servers, real processes and a fault proxy for the tests, examples and benchmarks of this workspace.

pub mod process;
pub mod proxy;
pub mod server;
