#!/usr/bin/env bash
# Each defence, masked alone, is caught by the checker of its promise, the build excluded.
set -euo pipefail
bound_seconds=720
caught_least=40
bazel build --config=mutants --ui_event_filters=-info,-debug //tests/sim:sim >&2
began=$SECONDS
status=0
output=$(tools/sim.sh --mutants --jobs 2) || status=$?
took=$((SECONDS - began))
echo "$output"
# A row: the defence's name, the promise, `caught by seed N`.
caught=$(grep -c 'caught by seed [0-9]*$' <<<"$output" || true)
echo "figure: $caught caught, $(tail -n 1 <<<"$output"), ${took} s"
((status == 0 && took < bound_seconds && caught >= caught_least))
