#!/bin/sh
# Searches for inputs that make the attribute macro fail: sh lock-fuzz/run.sh [minutes]
# The number is the time in minutes for each fuzz target, 10 by default.
#
# This script needs a C++ compiler, a nightly compiler and cargo-fuzz. If the nightly compiler or cargo-fuzz is missing,
# the script installs it with rustup or cargo. A small set of the inputs that reach new code is kept in corpus/, and
# `cargo test -p lock-macros` replays these inputs. A failing input is left in artifacts/.
set -eu
cd "$(dirname "$0")"

missing() {
    echo "$1" >&2
    exit 1
}

minutes=${1:-10}
case $minutes in
'' | *[!0-9]* | 0) missing 'usage: sh lock-fuzz/run.sh [minutes]' ;;
esac
command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
    missing 'a C++ compiler is missing, for libFuzzer is compiled here: install g++ or clang'
if ! cargo +nightly --version >/dev/null 2>&1; then
    command -v rustup >/dev/null 2>&1 ||
        missing 'a nightly compiler is missing, and rustup, which could install it: see https://rustup.rs'
    echo '== installing a nightly compiler'
    rustup toolchain install nightly --profile minimal || missing 'a nightly compiler is missing, and rustup could not install it'
fi
PATH="$PATH:$PWD/target/tools/bin"
if ! command -v cargo-fuzz >/dev/null 2>&1; then
    echo '== installing cargo-fuzz'
    cargo +nightly install cargo-fuzz --locked --root target/tools ||
        missing 'cargo-fuzz is missing, and cargo could not install it'
fi

# fuzz "<folders>" <options>: runs the target on the inputs of the folders, and writes new inputs into the first folder.
# The fuzzer runs without a sanitizer, which would only cost time, because the code has no `unsafe`.
fuzz() {
    folders=$1
    shift
    cargo +nightly fuzz run --fuzz-dir . --sanitizer none "$target" $folders -- -max_len=1024 -timeout=25 "$@"
}

for target in keys tokens; do
    found=target/found/$target kept=target/kept/$target
    mkdir -p "$found" "corpus/$target"
    echo "== $target, for $minutes minutes"
    set -- "-max_total_time=$((minutes * 60))" -print_final_stats=1
    [ ! -e "$target.dict" ] || set -- "$@" "-dict=$target.dict"
    fuzz "$found corpus/$target seeds/$target" "$@"

    # From the inputs found, keep a small set that reaches each edge of the control flow that the seeds do not reach.
    # The count of how often an input reaches an edge is ignored. If more than 400 inputs remain, keep the 400 longest,
    # because long inputs reach most edges.
    rm -rf "$kept"
    mkdir -p "$kept"
    cp "seeds/$target"/* "$kept"
    fuzz "$kept corpus/$target $found" -set_cover_merge=1 -use_counters=0
    for seed in "seeds/$target"/*; do
        rm -f "$kept/${seed##*/}"
    done
    ls -S "$kept" | tail -n +401 | (cd "$kept" && xargs rm -f)
    rm -rf "corpus/$target" "$found"
    mv "$kept" "corpus/$target"
    echo "== $target: $(ls "corpus/$target" | wc -l) inputs kept"
done
