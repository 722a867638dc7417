//! Tests of what a service can observe of its locks: spans, metrics, the hooks for leases that are lost or nearly over,
//! whether the server answers, and what a shutdown leaves. A panic of the code that observes them does not stop the
//! engine. A test of a service can cause failures. The runbook covers each alert and each error.
//!
//! These tests are a separate test target, because they install a subscriber and a metrics recorder for the whole
//! process.

mod lifecycle;
mod metrics;
mod panics;
mod runbook;
mod slow;
mod spans;
mod testing;
mod warnings;
