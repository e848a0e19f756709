#!/usr/bin/env bash
# A worker is stopped for 60 s and continued: no process hangs, its stale push is refused, and it
# rejoins.
set -euo pipefail
bazel build --ui_event_filters=-info,-debug //tests/e2e:binaries >&2
python3 -m tests.e2e.staleness_test --full Staleness.test_a_stopped_worker_is_fenced_and_rejoins
