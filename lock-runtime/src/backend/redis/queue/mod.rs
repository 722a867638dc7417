//! Waiting for a lock on one server: sessions, their waiters, and the cohorts that share a grant.

pub(crate) mod attempt;
pub(crate) mod cleanup;
pub(crate) mod cohort;
pub(crate) mod cohorts;
pub(crate) mod multi;
pub(crate) mod notify;
pub(crate) mod renew;
pub(crate) mod session;
pub(crate) mod waiters;
