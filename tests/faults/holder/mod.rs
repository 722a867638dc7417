//! Holders and waiters: their processes, their runtimes, and callers that are not polled.

mod calls;
mod late_leases;
mod many_holds;
mod polled_late;
mod processes;
mod unheard;
