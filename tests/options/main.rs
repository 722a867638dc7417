//! Tests of the options of a call, and of the parts of the API that no promise covers, on every backend.

mod authority;
mod callers;
mod connecting;
mod credentials;
mod defaults;
mod extend;
mod hold_at_least;
mod key_lists;
mod keys;
mod latch;
mod layout;
mod leader;
mod leftovers;
mod logs;
mod map_err;
mod multi_lock;
mod on_busy;
mod operate;
mod others;
mod readers;
mod release;
mod replicas;
mod runtimes;
mod semaphore;
mod strategy;
mod tls;

use support::stores;
