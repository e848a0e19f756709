#!/usr/bin/env bash
# BSP: the exported parameters have one SHA-256 over 1 to 4 workers x 1 and 3 shards, different
# numbers of lanes, and with a worker killed on the way.
set -euo pipefail
bazel build --ui_event_filters=-info,-debug //tests/e2e:binaries >&2
python3 -m tests.e2e.bsp_matrix_test --full
