#!/bin/sh
# Lets the tool cargo-mutants make one small change at a time to lock-core and to those files of the engine that do no
# I/O. Lists each change that no unit test of these sources detects. Usage: sh tools/mutants/pure.sh
#
# This script needs cargo-mutants (`cargo install cargo-mutants`), and takes five minutes. A repeated run tries only the
# changes that no test has detected so far.
set -eu
cd "$(dirname "$0")/../.."
if ! cargo mutants --version >/dev/null 2>&1; then
    echo 'cargo-mutants is missing: cargo install cargo-mutants --locked' >&2
    exit 1
fi
cargo mutants --iterate --timeout 60 --output target/mutants/core --package lock-core &&
    cargo mutants --iterate --timeout 60 --output target/mutants/runtime --package lock-runtime \
        --file 'lock-runtime/src/backend/redis/core/**/*.rs' \
        --file lock-runtime/src/lease/mod.rs --file lock-runtime/src/lease/policy.rs \
        --file lock-runtime/src/lease/due_queue.rs --file lock-runtime/src/lease/siblings.rs -- --lib
