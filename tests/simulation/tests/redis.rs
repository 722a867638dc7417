//! Compares the simulated server with a real server. The same random sequences of commands and of script calls must
//! lead to the same replies, pushes and keys on both servers, byte for byte.
//!
//! `SIMULATION_SEQUENCES` sets the number of sequences of each test. The default of 10,000 takes about half a minute in a
//! debug build, and a million takes a night. With 10,000 sequences or more, every outcome in `OUTCOMES` has to occur.
//!
//! On the simulated server, time does not pass by itself. On the real server, a sequence takes a few milliseconds. To
//! make the replies comparable, the comparison rounds the time to live of each key up to a multiple of
//! [`STEP`](pair::STEP), and scripts get the time as their last argument. A step that lets time pass advances the time
//! in this argument, and shortens the time to live of all keys on both servers.

#[path = "redis/calls.rs"]
mod calls;
#[path = "redis/commands.rs"]
mod commands;
#[path = "redis/pair.rs"]
mod pair;

use std::{
    cell::RefCell,
    env,
    io::{Read, Write},
};

use lock_simulation::redis::Mode;
use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestCaseError, TestRunner},
};
use support::server::RedisServer;

use calls::{Call, SCRIPTS, call, channels, meddling};
use commands::any_command;
use pair::{Pair, START, encode, words};

/// The number of tries for a sequence. The test fails only if each of these tries shows a difference, because a single
/// try can show a difference when the real server is slow.
const TRIES: usize = 10;
/// The beginnings of lines that have to occur in the replies: most kinds of answers of scripts, messages, errors, and
/// the beginning of a token.
const OUTCOMES: [&str; 18] = [
    "queued",
    "held",
    "busy",
    "late",
    "granted",
    "left",
    "gone",
    "ends",
    "whole",
    "lost",
    "message",
    "free|",
    "-BADLEASE",
    "-OOM",
    "-READONLY",
    "-WRONGTYPE",
    "-ERR",
    ":1800",
];
/// Texts that replace valid arguments of commands, or are added to them.
const JUNK: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "x",
    "a|b",
    " 1",
    "1 ",
    "+1",
    "01",
    "1.5",
    "-0",
    "0x1f",
    "1e17",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "(1",
    "(",
    "9223372036854775807",
    "-9223372036854775808",
    "NX",
    "GET",
    "WITHSCORES",
];

/// One step of a sequence.
#[derive(Debug, Clone)]
enum Step {
    Command(Vec<String>),
    Script(Call),
    Mode(Mode),
    Pass(u64),
}

/// Compares random sequences on both servers. If there are 10,000 sequences or more, each element of `outcomes` has to
/// occur in the replies.
fn run(steps: impl Strategy<Value = Vec<Step>>, outcomes: &[&'static str]) {
    let sequences = env::var("SIMULATION_SEQUENCES").ok();
    let cases = sequences.map_or(10_000, |cases| {
        cases.parse().expect("a number of sequences")
    });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = RedisServer::builder().arg("--databases", "1");
    let server = runtime.block_on(server.start());
    let pair = RefCell::new(Pair::new(server.port()));
    for (_, source) in SCRIPTS.iter() {
        let mut pair = pair.borrow_mut();
        let load = encode(
            &[
                &["SCRIPT".to_owned(), "LOAD".to_owned()][..],
                std::slice::from_ref(source),
            ]
            .concat(),
        );
        pair.real.write_all(&load).expect("the server reads");
        let _ = pair.real.read(&mut [0; 64]).expect("the server answers");
        let id = pair.id;
        pair.simulated.receive(id, &load, START);
    }
    let outcomes = outcomes.iter().map(|outcome| (*outcome, 0)).collect();
    pair.borrow_mut().outcomes = outcomes;
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    });
    let result = runner.run(&steps, |steps| {
        let mut compared = Ok(());
        for _ in 0..TRIES {
            compared = pair.borrow_mut().compare(&steps);
            if compared.is_ok() {
                break;
            }
        }
        compared.map_err(TestCaseError::fail)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let outcomes = pair.into_inner().outcomes;
    if cases >= 10_000 {
        assert!(outcomes.values().all(|count| *count > 0), "{outcomes:?}");
    }
}

fn mode() -> impl Strategy<Value = Step> {
    let modes = [
        Mode::Normal,
        Mode::Normal,
        Mode::OutOfMemory,
        Mode::ReadOnly,
    ];
    select(modes.to_vec()).prop_map(Step::Mode)
}

#[test]
fn commands_have_the_replies_and_effects_of_a_real_server() {
    let step = prop_oneof![30 => any_command(), 1 => mode(), 1 => (1..8_u64).prop_map(|steps| Step::Pass(steps * 4))];
    run(
        proptest::collection::vec(step, 1..40),
        &[
            "-WRONGTYPE",
            "-OOM",
            "-READONLY",
            "-ERR",
            ">3",
            "%1",
            ",",
            "_",
        ],
    );
}

#[test]
fn scripts_have_the_replies_and_effects_of_a_real_server() {
    let pass = prop_oneof![3 => 1..4_u64, 1 => 1..50_u64].prop_map(Step::Pass);
    let step = prop_oneof![40 => call(), 5 => meddling(), 4 => pass, 1 => mode()];
    let listening = Step::Command([words("SUBSCRIBE"), channels()].concat());
    run(
        proptest::collection::vec(step, 1..40).prop_map(move |mut steps| {
            steps.insert(0, listening.clone());
            steps
        }),
        &OUTCOMES,
    );
}
