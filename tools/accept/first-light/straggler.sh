#!/usr/bin/env bash
# One worker ten times slower under SSP(2): the measured lag is never above 2.
set -euo pipefail
bazel build --ui_event_filters=-info,-debug //tests/e2e:binaries >&2
python3 -m tests.e2e.staleness_test Staleness.test_the_lag_never_exceeds_the_bound_with_a_straggler
