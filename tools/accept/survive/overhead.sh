#!/usr/bin/env bash
# 1 worker + 2 shards with two copies of everything against the same worker with a local update.
set -euo pipefail
bound=0.65
output=$(tools/bench.sh overhead --durability replicated)
echo "$output"
ratio=$(sed -n 's/^overhead ratio: median \([0-9.]*\).*/\1/p' <<<"$output")
echo "figure: ${ratio:-none}"
awk -v r="${ratio:-0}" -v b="$bound" 'BEGIN { exit !(r >= b) }'
