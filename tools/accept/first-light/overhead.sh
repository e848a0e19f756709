#!/usr/bin/env bash
# 1 worker + 2 shards against the same worker with a local update.
set -euo pipefail
bound=0.70
output=$(tools/bench.sh overhead)
echo "$output"
ratio=$(sed -n 's/^overhead ratio: median \([0-9.]*\).*/\1/p' <<<"$output")
echo "figure: ${ratio:-none}"
awk -v r="${ratio:-0}" -v b="$bound" 'BEGIN { exit !(r >= b) }'
