//! Real servers, real processes and a fault proxy for the tests, examples and benchmarks of this workspace.

pub mod process;
pub mod proxy;
pub mod server;

/// The README's code, compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
