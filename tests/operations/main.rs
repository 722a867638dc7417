//! What a service can see of its locks: spans, metrics, and the hook for leases that are nearly over.
//!
//! A test target of its own, because it installs a subscriber and a metrics recorder for the whole process.

mod metrics;
mod spans;
mod warnings;
