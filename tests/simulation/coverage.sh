#!/bin/sh
# Runs the simulation for the given number of seconds (120 by default), and prints which lines of `Acquisition` and
# `Cohort` no run has executed. The script needs the coverage tools of the LLVM version that the compiler uses: install
# them with `rustup component add llvm-tools` or, for LLVM 22, with Debian's package `llvm-22`.
set -eu
cd "$(dirname "$0")/../.."
major=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
installed="$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin"
if [ -x "$installed/llvm-cov" ]; then
    cov="$installed/llvm-cov" profdata="$installed/llvm-profdata"
elif command -v "llvm-cov-$major" >/dev/null; then
    cov="llvm-cov-$major" profdata="llvm-profdata-$major"
else
    echo "llvm-cov for LLVM $major is missing: rustup component add llvm-tools, or apt-get install llvm-$major" >&2
    exit 1
fi
built=target/coverage
export CARGO_TARGET_DIR="$built" RUSTFLAGS="-C instrument-coverage"
cargo build --quiet --release -p lock-simulation --example simulate
rm -rf "$built/profiles"
LLVM_PROFILE_FILE="$built/profiles/%p.profraw" "$built/release/examples/simulate" --seconds "${1:-120}"
"$profdata" merge -sparse "$built"/profiles/*.profraw -o "$built/simulation.profdata"
core=lock-runtime/src/backend/redis/core
for machine in "$core/acquisition.rs" "$core/cohort.rs"; do
    echo
    echo "$machine: lines that were not reached"
    "$cov" show "$built/release/examples/simulate" -instr-profile="$built/simulation.profdata" "$machine" |
        grep -E '^ *[0-9]+\| +0\|' || echo "(none)"
done
