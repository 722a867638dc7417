//! Faults of holders and waiters: of their processes and runtimes, and of callers that are not polled.

mod calls;
mod late_leases;
mod many_holds;
mod polled_late;
mod processes;
mod shared;
mod unheard;
