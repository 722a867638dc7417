//! Runs random sequences of callers' actions on the real backends and on a model of the promises. Compares the order of
//! grants, the tokens, the losses and the counters, and checks that no holder, waiter or key is left at the end.
//!
//! `PROPTEST_CASES` sets the number of sequences. A failing sequence is shrunk and printed, and its seed is written to
//! `regressions/`. The next run tries the seeds in that directory first.

mod call;
#[cfg(test)]
mod found;
#[cfg(test)]
mod late;
mod model;
mod steps;
mod system;

use proptest::test_runner::{Config, FileFailurePersistence};
use proptest_state_machine::prop_state_machine;
use support::stores::Store;
use tokio::runtime::Runtime;

use crate::{
    model::Rules,
    steps::Place,
    system::{Home, Machine},
};

struct Memory;

impl Place for Memory {
    const RULES: Rules = Rules {
        own_clock: true,
        operator: false,
    };
}

impl Home for Memory {
    fn store(_: &Runtime) -> Store {
        Store::memory()
    }
}

struct Redis;

impl Place for Redis {
    const RULES: Rules = Rules {
        own_clock: false,
        operator: true,
    };
}

impl Home for Redis {
    fn store(runtime: &Runtime) -> Store {
        runtime.block_on(Store::redis())
    }
}

/// Returns a configuration with the number of cases in `PROPTEST_CASES`, or `cases` if this variable is not set.
fn config(cases: u32, regressions: &'static str) -> Config {
    let chosen = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config::default();
    Config {
        cases: if chosen { config.cases } else { cases },
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        max_shrink_iters: 2000,
        // `max_shrink_time` is in ms. Shrinking on a server is slow: in each failing sequence, the test waits for an
        // event that does not occur, and stops only at a time limit.
        max_shrink_time: 60_000,
        ..config
    }
}

prop_state_machine! {
    #![proptest_config(config(1500, concat!(env!("CARGO_MANIFEST_DIR"), "/reference/regressions/memory.txt")))]

    #[test]
    fn in_process(sequential 1..60 => Machine<Memory>);
}

prop_state_machine! {
    #![proptest_config(config(80, concat!(env!("CARGO_MANIFEST_DIR"), "/reference/regressions/redis.txt")))]

    #[test]
    fn on_a_server(sequential 1..40 => Machine<Redis>);
}
