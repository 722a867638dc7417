//! Real servers and a fault proxy for the tests, examples and benchmarks of this workspace.
