#!/usr/bin/env bash
# Activation checkpointing: less memory by plan, and the same bits in every gradient.
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
bazel test --nocache_test_results --test_output=all \
  //common/graph:graph_test //worker/executor:recompute_test >"$log" 2>&1 || status=$?
cat "$log"
every='^planned: ([a-z0-9]+) everyBlocks: 1 ([0-9.]+) MiB of ([0-9.]+) MiB.*'
planned=$(sed -nE "s/$every/\1 \2 \3/p" "$log" |
  awk '{ printf "%s%s %.2f", (NR > 1 ? ", " : ""), $1, $2 / $3 }')
same=$(sed -nE 's/^same bits: ([0-9]+) policies.*/\1/p' "$log" |
  awk '{ n += $1 } END { print n + 0 }')
echo "figure: ${planned:-no plans}; $same policies bitwise equal"
((status == 0)) && [[ -n "$planned" ]] && ((same > 0))
