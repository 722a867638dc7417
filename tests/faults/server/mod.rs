//! The server: outages, restarts, an operator's commands, and the cost of probes.

mod cluster;
mod failover;
mod load;
mod operator;
mod outages;
mod primaries;
mod probes;
mod restarts;
mod shutdown;
mod unusable;
