//! Tests of what a service can observe of its locks: spans, metrics, and the hook for leases that are nearly over. A
//! panic of the code that observes them does not stop the engine.
//!
//! These tests are a separate test target, because they install a subscriber and a metrics recorder for the whole
//! process.

mod metrics;
mod panics;
mod spans;
mod warnings;
