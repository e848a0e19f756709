#!/usr/bin/env bash
# Manifests and operations, by the tests of tests/deploy; each must run, not skip.
set -euo pipefail
judge="${XDG_CACHE_HOME:-$HOME/.cache}/starling/judge/bin/python3"
if [[ ! -x "$judge" ]]; then
  echo "figure: no judges' Python: run tools/setup.sh --tests"
  exit 77
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
STARLING_JUDGE_PYTHON="$judge" bazel test --nocache_test_results --test_output=all \
  //tests/deploy/... >"$log" 2>&1 || status=$?
cat "$log"
if grep -q '^SKIPPED: ' "$log"; then
  echo "figure: $(grep '^SKIPPED: ' "$log" | head -n 1)"
  exit 77
fi
versions="Debian's kubectl 1.20"
if command -v kubectl >/dev/null; then
  versions+=" and $(kubectl version --client 2>/dev/null | sed -n 's/^Client Version: //p')"
else
  versions+=" alone"
fi
echo "figure: $(sed -nE 's/^Ran ([0-9]+) tests? in .*/\1/p' "$log" |
  awk '{ n += $1 } END { print n }') cases; $versions"
exit "$status"
