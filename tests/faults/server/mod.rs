//! The server: outages, restarts, what an operator does to it, and what it costs to probe it.

mod operator;
mod outages;
mod probes;
mod restarts;
mod shutdown;
mod unusable;
