//! Tests of each promise in `docs/promises.md`, on every backend to which the promise applies. Each module is named
//! after the promise that it tests. For each promise, `tools/mutants` contains at least one change to the engine that
//! makes only the tests of that promise fail.

mod chance;
mod modes;
mod p01_exclusion;
mod p01_polled_late;
mod p02_order;
mod p03_bounded_waiting;
mod p04_crash;
mod p05_told_of_loss;
mod p06_cancel;
mod p07_guards;
mod p07_programs;
mod p07_reentry;
mod p07_turns;
mod p08_result;
mod p09_early_exits;
mod p10_never_unlocked;
mod p11_keys;
mod p12_cost;
mod witness;

use support::stores;
