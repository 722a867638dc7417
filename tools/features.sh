#!/bin/sh
# Checks that lock-runtime compiles without warnings with each of its features, and with each pair of them:
# sh tools/features.sh [--quick]
#
# Clippy checks each feature alone. The compiler alone checks each pair, because clippy takes twice as long. All features
# but `metrics` enable `redis`, so their pairs with `redis` are no further combinations, and both TLS features enable the
# same code. With --quick, the script checks no features, and each kind of server alone. tests/check.sh runs this quick check,
# and the workflow .github/workflows/ci.yml runs the whole check.
set -eu
cd "$(dirname "$0")/.."
begun=$(date +%s)
count=0
failed=

# Runs a command of cargo with these features: check FEATURES COMMAND [OPTION ...]
check() {
    with=$1
    shift
    count=$((count + 1))
    if ! cargo "$@" --quiet --package lock-runtime --lib --no-default-features --features "$with" -- -D warnings; then
        failed="$failed '$with'"
    fi
}

features='cluster redis redisson redlock'
pairs=
if [ "${1-}" != --quick ]; then
    features="$features metrics tls-aws-lc tls-ring"
    pairs='cluster,redisson cluster,redlock redisson,redlock'
    pairs="$pairs metrics,cluster metrics,redis metrics,redisson metrics,redlock metrics,tls-ring metrics,tls-aws-lc"
    pairs="$pairs tls-ring,cluster tls-ring,redisson tls-ring,redlock tls-ring,tls-aws-lc"
    pairs="$pairs tls-aws-lc,cluster tls-aws-lc,redisson tls-aws-lc,redlock"
fi
check '' clippy
for feature in $features; do
    check "$feature" clippy
done
for pair in $pairs; do
    check "$pair" rustc --profile check
done
if [ -n "$failed" ]; then
    echo "lock-runtime has errors or warnings with these features:$failed" >&2
    exit 1
fi
echo "checked $count combinations of features in $(($(date +%s) - begun)) s"
