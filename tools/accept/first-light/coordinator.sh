#!/usr/bin/env bash
# kill -9 of the coordinator in the middle of a BSP job, and a restart with its state: the job ends
# with its usual SHA-256.
set -euo pipefail
bazel build --ui_event_filters=-info,-debug //tests/e2e:binaries >&2
python3 -m tests.e2e.failures_test \
  Failures.test_a_coordinator_that_dies_and_comes_back_changes_no_bit
