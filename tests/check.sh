#!/bin/sh
# Runs all tests and checks of the project: sh tests/check.sh
#
# Installs redis-server and the Rust components rustfmt and clippy, if they are missing. Compiles everything once. Then
# runs the tests against the real Redisson, the unit and integration tests on real Redis processes, a short soak (a test
# under load) with faults, and two examples. The example `inventory` sells items under several kinds of locks, and
# asserts how each sale ends. The example `flash_sale` kills the primary of a cluster in the middle of a sale, and
# asserts that each item is sold once. Beside these tests, which mostly wait, runs the checks that only compute: the
# models, the simulation, the compile-fail tests, the lints, the documentation and its examples, ten mutants (small
# changes that break the engine, and that the tests must detect), and the example `orders` as a new user runs it. If a
# JDK or Maven is missing, prints a message and skips the tests against Redisson. The long soak and the benchmark have
# commands of their own; see CONTRIBUTING.md.
set -eu
cd "$(dirname "$0")/.."
programs=${CARGO_TARGET_DIR:-target}/debug
# Most of the time goes into compiling, and each program runs once. The compiler therefore divides a crate into only two
# parts, and keeps nothing for the next build.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=2 CARGO_PROFILE_DEV_DEBUG=0

step() {
    printf '\n== %s\n' "$*"
}

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
    step 'installing redis-server'
    install_redis
fi
for component in rustfmt clippy; do
    if ! cargo "$([ "$component" = rustfmt ] && echo fmt || echo clippy)" --version >/dev/null 2>&1; then
        step "installing $component"
        rustup component add "$component"
    fi
done

# Prints the setting that makes cargo run only the tests of one group (see tests/group.sh).
only() {
    echo "target.'cfg(all())'.runner = ['sh', '$PWD/tests/group.sh', '$1']"
}

# Copies the compiled dependencies to the folder in which the mutants are compiled, so that they are not compiled again.
copy_dependencies() {
    mutants=target/mutants/target/debug
    if [ ! -e "$mutants" ]; then
        mkdir -p "$mutants/deps"
        cp -a "$programs/.fingerprint" "$programs/build" "$mutants"
        cp -a "$programs"/deps/lib* "$mutants/deps"
        cp -a "$programs"/deps/*.d "$mutants/deps"
    fi
}

# The parts that use the processor all the time. They run beside the tests that mostly wait. If those tests fail, these
# parts end, too.
part=${1-}
if [ -n "$part" ]; then
    trap 'kill "$current" 2>/dev/null; exit 143' TERM
fi
run() {
    "$@" &
    current=$!
    wait "$current"
}
case $part in
--mutants)
    step 'ten mutants'
    run copy_dependencies
    run "$programs/mutants" --draw 10 1
    exit
    ;;
--checks)
    run cargo --config "$(only computing)" test --workspace --all-features --tests
    step 'lints'
    run cargo clippy --workspace --all-targets --all-features -- -D warnings
    step 'documentation'
    run env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --all-features
    run cargo test --workspace --all-features --doc
    step 'example orders'
    run cargo run --example orders
    step 'alerts'
    run sh docs/operations/check.sh
    exit
    ;;
esac

step 'format'
cargo fmt --all --check
step 'build'
cargo build --workspace --all-features --tests --bins --examples --test redisson
# The other parts have the lowest priority, so that they do not delay the tests. Their output is shown at the end.
mkdir -p target
others=
for part in mutants checks; do
    nice -n 19 sh tests/check.sh "--$part" >"target/check-$part.log" 2>&1 </dev/null &
    others="$others $!"
done
trap 'kill $others 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
step 'Redisson'
sh tests/redisson/run.sh --workspace --all-features
step 'tests'
# Most tests wait for a lease or a timer. At least four tests therefore run at the same time, even on a machine with
# fewer cores. With eight tests at a time on two cores, the promises' tests of thousands of waiters delay others.
cores=$(getconf _NPROCESSORS_ONLN)
RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((cores < 4 ? 4 : cores))} \
    cargo --config "$(only waiting)" test --workspace --all-features --tests
step 'soak'
"$programs/soak" --seconds 20 --faults
step 'examples'
"$programs/examples/inventory" --quick
"$programs/examples/flash_sale" --processes 4 --servers cluster --kill-primary
step 'mutants, models, simulation, compile-fail tests, lints, documentation, example, alerts'
passed=yes
for part in $others; do
    wait "$part" || passed=no
done
trap - EXIT
cat target/check-mutants.log target/check-checks.log
if [ "$passed" = no ]; then
    echo 'These checks have failed.' >&2
    exit 1
fi

step 'everything passed'
