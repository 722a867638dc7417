#!/bin/sh
# Changes every decision of lock-core and of the engine's plan and lease, one after the other, and lists the changes that their own
# unit tests do not notice: sh tools/mutants/pure.sh
#
# Needs cargo-mutants (`cargo install cargo-mutants`). Five minutes; run again, it goes on with what was missed.
set -eu
cd "$(dirname "$0")/../.."
if ! cargo mutants --version >/dev/null 2>&1; then
    echo 'cargo-mutants is missing: cargo install cargo-mutants --locked' >&2
    exit 1
fi
cargo mutants --iterate --timeout 60 --output target/mutants/core --package lock-core &&
    cargo mutants --iterate --timeout 60 --output target/mutants/plan --package lock-runtime \
        --file lock-runtime/src/plan.rs --file lock-runtime/src/lease.rs -- --lib
