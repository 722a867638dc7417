#!/bin/sh
# Runs the tests of Redisson's layout against the real Redisson: sh tests/redisson/run.sh [OPTION ...]
#
# The options are passed to `cargo test`.
#
# Needs redis-server, a JDK (17 or later) and Maven, which fetches Redisson. If prepare.sh cannot prepare Redisson,
# prints that nothing was tested. Then fails only if `CI` is set and there is a Java compiler.
cd "$(dirname "$0")/../.." || exit 1

reason=$(sh tests/redisson/prepare.sh)
case $? in
0) exec cargo test "$@" --test redisson ;;
3)
    echo '!!' >&2
    echo "!! NOT TESTED against the real Redisson: $reason" >&2
    echo '!!' >&2
    if [ -n "${CI:-}" ] && command -v javac >/dev/null 2>&1; then
        exit 1
    fi
    ;;
*) exit 1 ;;
esac
