//! Tests the demo, which starts a Redis server and two processes of the shop.

use std::process::{Command, Output};

fn demo(configure: impl FnOnce(&mut Command) -> &mut Command) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
    configure(command.args(["demo", "--once"]))
        .output()
        .expect("the demo can be started")
}

#[test]
fn two_processes_sell_each_unit_once() {
    let output = demo(|command| command);
    let (told, log) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{told}{log}");
    assert_eq!(
        told.matches("shop listens on http://127.0.0.1:").count(),
        2,
        "{told}"
    );
    assert!(
        told.contains("every unit was sold exactly once: 40 receipts"),
        "{told}"
    );
    for span in ["    lock.wait", "    lock.hold", "      record"] {
        assert!(log.contains(span), "a sale is traced: {log}");
    }
    assert_eq!(
        log.matches("the shop has shut down").count(),
        2,
        "SIGTERM ends both: {log}"
    );
}

#[test]
fn without_a_redis_server_the_demo_says_what_to_install() {
    let output = demo(|command| command.env("PATH", ""));
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("install the package redis-server"), "{log}");
}
