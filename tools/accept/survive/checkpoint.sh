#!/usr/bin/env bash
# A checkpoint is whole or not there, loads into any number of shards, and does not stop training.
set -euo pipefail
# Killed at each write, ENOSPC and EIO, each bit and length; then real processes: restored on 1, 2
# and 5 shards, another schedule, a model that does not fit, deaths while it is written.
bazel test --nocache_test_results //common/checkpoint:checkpoint_test //tests/e2e:checkpoint_test ||
  {
    echo "figure: a test failed: see above"
    exit 1
  }
exec tools/accept/e2e.sh checkpoint_stall.py
