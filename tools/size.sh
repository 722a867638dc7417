#!/bin/sh
# Prints how large the engine is, and what one client costs: sh tools/size.sh
#
# The lines of lock-runtime/src are printed for each folder, with comments and without unit tests, which have a column of
# their own. Then follow the numbers of tests, of mutants, and of constants that are durations. A program
# (benches/cost.rs) measures the rest: the connections of one client, and the allocations and system calls of one lock
# and unlock. It needs redis-server, and strace for the system calls.
set -eu
cd "$(dirname "$0")/.."

git ls-files 'lock-runtime/src/*.rs' 'lock-runtime/src/*.lua' 'lock-core/src/*.rs' | xargs awk '
    # A file of unit tests, or the item after #[cfg(test)] up to the brace that closes it, counts as tests.
    FNR == 1 {
        file_of_tests = FILENAME ~ /\/tests\.rs$/
        follows = inside = 0
        folder = FILENAME
        sub(/\/[^\/]*$/, "", folder)
    }
    /^#\[cfg\(test\)\]/ { follows = 1 }
    {
        is_test = file_of_tests || follows || inside
        if (inside) inside = !/^}/
        else if (follows && /[{;]$/) { follows = 0; inside = /{$/ }
        if (FILENAME ~ /^lock-runtime/) { if (is_test) tests[folder]++; else code[folder]++; folders[folder] }
        if (!is_test && /const [A-Z0-9_]+: Duration/) durations++
    }
    END {
        for (folder in folders) {
            printf "%s %d %d\n", folder, code[folder], tests[folder]
            all_code += code[folder]
            all_tests += tests[folder]
        }
        printf "~all %d %d\n~durations %d\n", all_code, all_tests, durations
    }' | LC_ALL=C sort | awk '
    BEGIN { printf "%-45s %7s %7s\n", "folder", "lines", "tests" }
    { sub(/^~/, "") }
    $1 == "durations" { durations = $2; next }
    { printf "%-45s %7d %7d\n", $1, $2, $3 }
    END { print "constants that are durations, in lock-runtime and lock-core: " durations }'
tests=$(git grep -hE '^ *#\[([a-z_]+::)?test(\(.*)?\]' -- '*.rs' | wc -l)
echo "tests in the workspace: $tests"
echo "mutants: $(git ls-files 'tools/mutants/patches/*.patch' | wc -l)"

cargo build --quiet -p lock-tools --example cost
"${CARGO_TARGET_DIR:-target}/debug/examples/cost"
