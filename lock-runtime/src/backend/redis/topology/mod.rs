//! Finds the session that serves a lock.

pub(crate) mod single;
