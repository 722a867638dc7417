//! Runs many kinds of functions under their lock. Checks that two calls with the same key never overlap, that each call
//! returns the value of its body, and that the key is free afterwards. Each file contains functions of similar kinds.

mod arguments;
mod attributes;
mod bodies;
mod drop_order;
mod future_size;
mod generics;
mod handlers;
mod keys;
mod local;
mod options;
mod permits;
mod places;
mod receivers;
mod recursion;
mod returns;
mod shadowing;
mod spans;
mod traits;

/// The return type of functions without an error type of their own.
type Locked<T> = Result<T, lock_runtime::LockError>;
