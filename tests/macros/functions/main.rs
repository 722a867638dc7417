//! Functions of every shape run under their lock: two calls of one key never overlap, the value is the body's, and the
//! key is free afterwards. Each family of shapes has a file.

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
mod places;
mod receivers;
mod recursion;
mod returns;
mod shadowing;
mod spans;
mod traits;

/// The error of functions that have none of their own.
type Locked<T> = Result<T, lock_runtime::LockError>;
