//! Tests of what a service can observe of its locks: spans, metrics, and the hook for leases that are nearly over.
//!
//! These tests are a separate test target, because they install a subscriber and a metrics recorder for the whole
//! process.

mod metrics;
mod spans;
mod warnings;
