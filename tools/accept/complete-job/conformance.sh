#!/usr/bin/env bash
# The conformance suite of operators: each one, forward and gradient, against the reference in
# double precision, which is itself checked with finite differences.
set -euo pipefail
bazel build --ui_event_filters=-info,-debug //kernels:conformance_test >&2
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
bazel-bin/kernels/conformance_test >"$output" 2>&1 || status=$?
grep -v '^\[ *\(RUN\|OK\) *\]' "$output" || true
runs=$(sed -n 's/^conformance: //p' "$output" | tail -n 1)
passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*\.$/\1/p' "$output")
failed=$(grep -c '^\[  FAILED  \] .*)$' "$output" || true)
echo "figure: ${passed:-0} tests passed, ${failed:-0} failed; ${runs:-no runs}"
((status == 0)) && [[ -n "$runs" ]]
