//! A deterministic world for the real engine and the real scripts: time, network, faults and callers come from one seed.

pub mod redis;
