#!/bin/sh
# Runs a test program if it belongs to a group of tests: group.sh GROUP PROGRAM [ARGUMENT ...]
#
# tests/check.sh makes cargo start each test program through this script. The group `computing` has the tests that use
# the processor all the time: the models, the simulation, and the tests that run the compiler. The group `waiting` has
# the tests that mostly wait for leases, timers and servers. check.sh runs these two groups at the same time. The group
# `documentation` has the test that writes the documentation.
set -eu
group=$1
shift
case ${1##*/} in
    lints-* | model-* | core_model-* | redlock_model-* | redis-* | simulation-* | topology-* | ui-*) belongs=computing ;;
    public_api-*) belongs=documentation ;;
    *) belongs=waiting ;;
esac
if [ "$belongs" = "$group" ]; then
    exec "$@"
fi
echo "these tests belong to the group '$belongs'"
