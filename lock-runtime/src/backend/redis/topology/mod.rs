//! Which session serves a lock.

pub(crate) mod single;
