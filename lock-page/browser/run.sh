#!/bin/sh
# Tests the page in headless Chromium: sh lock-page/browser/run.sh
#
# Needs redis-server, Chromium and its driver. Installs Chromium and the driver with apt-get if they are missing. Writes
# the screenshots docs/operations/page-desktop.png and docs/operations/page-phone.png.
set -eu
cd "$(dirname "$0")/../.."

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

if ! command -v chromedriver >/dev/null 2>&1 || ! command -v chromium >/dev/null 2>&1; then
    if command -v apt-get >/dev/null 2>&1; then
        as_root apt-get update -qq
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver fonts-dejavu-core
    fi
    if ! command -v chromedriver >/dev/null 2>&1 || ! command -v chromium >/dev/null 2>&1; then
        echo 'These tests need the commands chromium and chromedriver, and they could not be installed with apt-get' >&2
        echo '(Debian: the packages chromium and chromium-driver). Install them and run this again.' >&2
        exit 1
    fi
fi
if ! command -v redis-server >/dev/null 2>&1; then
    echo 'These tests need redis-server: sh tests/check.sh installs it.' >&2
    exit 1
fi
# Uses the main workspace's target folder, so that the crates compiled there are not compiled again. The tests run one
# at a time, because they measure how fast the page is.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} exec cargo test --manifest-path lock-page/browser/Cargo.toml \
    -- --test-threads 1 "$@"
