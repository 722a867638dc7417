#!/bin/sh
# Runs the tests of the alerts with promtool: sh docs/operations/check.sh
#
# Installs Debian's package `prometheus` if promtool is missing and the user is root. If promtool is still missing after
# that, the script prints that it has not tested the alerts.
set -eu
cd "$(dirname "$0")"

if ! command -v promtool >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    # The policy file prevents the package from starting Prometheus as a service.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap 'rm -f $policy' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
    fi
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus; } \
        </dev/null >/dev/null || true
fi
if ! command -v promtool >/dev/null 2>&1; then
    echo '!! NOT TESTED: the alerts for Prometheus, because promtool is not installed' >&2
    exit 0
fi
promtool check rules prometheus-rules.yml
promtool test rules prometheus-rules-test.yml
