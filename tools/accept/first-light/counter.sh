#!/usr/bin/env bash
# builtin: counter, 4,096 samples, 3 workers, 3 epochs, one worker killed in each epoch: every row
# equals the epoch's number at each cut; 20 seeds over the three policies.
set -euo pipefail
bazel build --ui_event_filters=-info,-debug //tests/e2e:binaries >&2
python3 -m tests.e2e.counter_test --seeds 20
