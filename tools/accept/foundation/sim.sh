#!/usr/bin/env bash
# 1,000 seeds of the simulated cluster, the build excluded: no violation, and everything that must
# be reached was reached.
set -euo pipefail
bound_seconds=180
# shellcheck source=tools/accept/foundation/before.sh
source tools/accept/foundation/before.sh
two_processors
bazel build --ui_event_filters=-info,-debug //tests/sim:sim >&2
began=$SECONDS
status=0
output=$(tools/sim.sh --seeds 1000 --jobs 2) || status=$?
took=$((SECONDS - began))
echo "$output"
echo "figure: $(tail -n 1 <<<"$output"), ${took} s"
((status == 0 && took < bound_seconds))
