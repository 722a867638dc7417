#!/bin/sh
# Runs all tests and checks of the project: sh tests/check.sh
#
# Installs redis-server and the Rust components rustfmt and clippy, if they are missing. Compiles everything once. Then
# runs two lanes at the same time. The first lane has the tests that mostly wait for real Redis processes, leases and
# timers, a short soak (a test under load) with faults, and five examples: `inventory` sells items under several kinds
# of locks, `scheduler` kills a leader, `report` kills a reader, `calls` kills a caller that has permits, and
# `flash_sale` kills the primary of a cluster in the middle of a sale. The second lane has the checks that only compute:
# the models, the simulation, the compile-fail tests, the lints, the features, the documentation and its examples, and
# the example `orders` as a new user runs it. A failed step does not end the others. The output of each step is in
# target/check. The last lines name each step that failed, with its failed tests. If a JDK or Maven is missing, the
# script prints a message and skips the tests against the real Redisson. The mutants, the long soak and the benchmarks
# have commands of their own; see CONTRIBUTING.md.
set -eu
cd "$(dirname "$0")/.."
programs=${CARGO_TARGET_DIR:-target}/debug
logs=$PWD/target/check
# Most of the time goes into compiling, and each program runs once. The compiler therefore divides a crate into only two
# parts, and keeps nothing for the next build.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=2 CARGO_PROFILE_DEV_DEBUG=0
begun=$(date +%s)

# Succeeds if the user is root, or if the command sudo is installed.
can_be_root() {
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null 2>&1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

install_redis() {
    if command -v apt-get >/dev/null 2>&1 && can_be_root; then
        # The tests start their own servers. A policy file therefore keeps the installation from starting a Redis
        # service.
        as_root env DEBIAN_FRONTEND=noninteractive sh -ec '
            policy=/usr/sbin/policy-rc.d
            if [ ! -e $policy ]; then
                trap "rm -f $policy" EXIT
                trap "exit 1" HUP INT TERM
                printf "#!/bin/sh\nexit 101\n" >$policy
                chmod +x $policy
            fi
            apt-get update -qq
            apt-get install -y -qq redis-server
        ' </dev/null
    elif command -v brew >/dev/null 2>&1; then
        brew install redis
    fi
    if ! command -v redis-server >/dev/null 2>&1; then
        echo 'The tests need redis-server 6.2 or later, and it could not be installed with apt-get (as root or with sudo)' >&2
        echo 'or brew: install Redis (or Valkey with a redis-server command) and run this script again.' >&2
        exit 1
    fi
}

if ! command -v redis-server >/dev/null 2>&1; then
    echo 'installing redis-server'
    install_redis
fi
for component in rustfmt clippy; do
    if ! cargo "$([ "$component" = rustfmt ] && echo fmt || echo clippy)" --version >/dev/null 2>&1; then
        echo "installing $component"
        rustup component add "$component"
    fi
done

# Prints the setting that makes cargo run only the tests of one group (see tests/group.sh).
only() {
    echo "target.'cfg(all())'.runner = ['sh', '$PWD/tests/group.sh', '$1']"
}

# Runs a command as a step: step NAME COMMAND [ARGUMENT ...]. Prints the result and the duration, and keeps the output in
# $logs/NAME. Succeeds in any case, and records a failure in $logs/failed.
step() {
    name=$1
    shift
    start=$(date +%s)
    "$@" >"$logs/$name" 2>&1 </dev/null &
    current=$!
    if wait "$current"; then
        result=passed
    else
        result=FAILED
        echo "$name" >>"$logs/failed"
    fi
    current=
    printf '%-14s %s in %d s\n' "$name" "$result" "$(($(date +%s) - start))"
}

lane=${1-}
case $lane in
--waiting | --computing)
    current=
    trap '[ -z "$current" ] || kill "$current" 2>/dev/null; exit 143' TERM
    ;;
esac
case $lane in
--waiting)
    step redisson sh tests/redisson/run.sh --workspace --all-features
    # Most tests wait, so at least eight of them run at the same time, even on a machine with fewer cores.
    cores=$(getconf _NPROCESSORS_ONLN)
    export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((cores < 8 ? 8 : cores))}"
    step tests cargo --config "$(only waiting)" test --workspace --all-features --tests --no-fail-fast
    grep -h '^this machine is busy' "$logs/tests" | sort -u || true
    step soak "$programs/soak" --seconds 20 --faults
    step inventory "$programs/examples/inventory" --quick
    step scheduler "$programs/examples/scheduler"
    step report "$programs/examples/report" redis
    step calls "$programs/examples/calls" redis
    step flash_sale "$programs/examples/flash_sale" --processes 4 --servers cluster --kill-primary
    exit
    ;;
--computing)
    step computing cargo --config "$(only computing)" test --workspace --all-features --tests --no-fail-fast
    step clippy cargo clippy --workspace --all-targets --all-features -- -D warnings
    step features sh tools/features.sh --quick
    step doc cargo --config "$(only documentation)" test --workspace --all-features --test public_api
    step doctests cargo test --workspace --all-features --doc --no-fail-fast
    step orders "$programs/examples/orders"
    step alerts sh docs/operations/check.sh
    exit
    ;;
esac

rm -rf "$logs"
mkdir -p "$logs"
# A machine with other work runs one lane after the other. Otherwise the lane that computes, which has the lowest priority,
# would not end, or would delay the tests that wait.
(
    sh -c 'while :; do :; done' &
    sleep 3
    kill $!
    wait $! 2>/dev/null || true
    times
) >"$logs/busy"
# The second line has the times of the commands: 0m2.900000s 0m0.000000s.
lanes_wait=$(tr 'ms' '  ' <"$logs/busy" | awk 'NR == 2 { print ($1 * 60 + $2 < 2.2) ? "yes" : "no" }')
rm "$logs/busy"
step format cargo fmt --all --check
step build cargo build --workspace --all-features --tests --bins --examples --test redisson
if ! grep -qsx build "$logs/failed"; then
    lanes=
    trap 'kill $lanes 2>/dev/null || true' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    await_lanes() {
        for lane in $lanes; do
            if ! wait "$lane"; then
                echo 'a lane of tests/check.sh ended early' >"$logs/lane"
                echo lane >>"$logs/failed"
            fi
        done
    }
    sh tests/check.sh --waiting &
    lanes=$!
    if [ "$lanes_wait" = yes ]; then
        echo 'this machine has other work, so the lanes run one after the other'
        await_lanes
        sh tests/check.sh --computing &
        lanes=$!
    else
        # The checks that compute have the lowest priority, so that they do not delay the tests that wait.
        nice -n 19 sh tests/check.sh --computing &
        lanes="$lanes $!"
    fi
    await_lanes
    trap - EXIT
fi

minutes=$((($(date +%s) - begun + 59) / 60))
cat "$logs"/* 2>/dev/null | grep '^!!' || true
if [ ! -e "$logs/failed" ]; then
    echo "everything passed in $minutes minutes"
    exit
fi
while read -r name; do
    printf '\n== %s\n' "$name"
    cat "$logs/$name"
done <"$logs/failed"
printf '\nfailed after %s minutes:\n' "$minutes"
while read -r name; do
    echo "  $name"
    sed -n 's/^test \(.*\) \.\.\. FAILED$/    \1/p' "$logs/$name"
done <"$logs/failed"
exit 1
