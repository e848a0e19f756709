#!/usr/bin/env bash
# 10,000 seeds of the simulated cluster, the build excluded: no violation, everything that must be
# reached was reached, and each fault many times.
set -euo pipefail
bound_seconds=1200
each_fault_least=100
faults_a_seed_least=8
bazel build --ui_event_filters=-info,-debug //tests/sim:sim >&2
began=$SECONDS
status=0
output=$(tools/sim.sh --seeds 10000 --jobs 2) || status=$?
took=$((SECONDS - began))
echo "$output"
# A row: `fault: WHAT   COUNT`.
least=$(sed -nE 's/^fault: (.*[^ ]) +([0-9]+)$/\2 \1/p' <<<"$output" | sort -n | head -n 1)
rarest="the rarest fault: ${least#* }, ${least%% *} times"
faults=$(sed -nE 's/.*, ([0-9]+) faults a seed, .*/\1/p' <<<"$(tail -n 1 <<<"$output")")
echo "figure: $(tail -n 1 <<<"$output"), ${took} s; $rarest"
((status == 0 && took < bound_seconds && ${least%% *} >= each_fault_least &&
  ${faults:-0} >= faults_a_seed_least))
