#!/usr/bin/env bash
# whole_test.sh NOTE: runs tools/test.sh unchanged, and judges its last line: nothing failed, and
# not because hardly any test ran. The figure ends with NOTE. Conformance combinations count, too
# (the line `conformance:`, tools/testing/report.py).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
least=5000 # test cases and conformance combinations
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
tools/test.sh 2>&1 | tee "$output" || status=$?
last=$(tail -n 1 "$output")
combinations=$(sed -nE 's/^conformance: ([0-9]+) combinations passed, .*/\1/p' "$output")
echo "figure: $last, ${combinations:-no} combinations passed (expected $least or more in all), $1"
((status == 0)) && [[ "$last" =~ ^([0-9]+)\ passed,\ 0\ failed(,\ [0-9]+\ skipped)?$ ]] &&
  ((BASH_REMATCH[1] + ${combinations:-0} >= least))
