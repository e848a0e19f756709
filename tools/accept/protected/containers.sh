#!/usr/bin/env bash
# The steps of the Containerfile without a container engine; their results run as under Kubernetes.
set -euo pipefail
judge="${XDG_CACHE_HOME:-$HOME/.cache}/starling/judge/bin/python3"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
tests/deploy/container_steps.sh "$judge" >"$log" 2>&1 || status=$?
cat "$log"
if ((status != 0)); then
  echo "figure: $(tail -n 1 "$log")"
  exit "$status"
fi
echo "figure: $(sed -n 's/^contained: //p' "$log");" \
  "$(sed -n 's/^size: starling-//p' "$log" | paste -sd ,)"
