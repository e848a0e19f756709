#!/usr/bin/env bash
# Every operator in every type on this machine's GPU.
set -euo pipefail
# shellcheck source=tools/accept/has_gpu.sh
source tools/accept/has_gpu.sh
bazel build --ui_event_filters=-info,-debug //kernels:conformance_gpu_test \
  //worker:libstarling_cuda.so >&2
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
(cd bazel-bin && STARLING_CONFORMANCE_DEVICE=gpu kernels/conformance_gpu_test) >"$output" 2>&1 ||
  status=$?
grep -v '^\[ *\(RUN\|OK\|SKIPPED\) *\]' "$output" || true
why=$(sed -n 's/^NOT RUN: //p' "$output" | head -n 1)
if [[ -n "$why" ]]; then
  echo "figure: there is a GPU, but: $why"
  exit 77
fi
passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*\.$/\1/p' "$output")
failed=$(grep -c '^\[  FAILED  \] .*)$' "$output" || true)
runs=$(sed -n 's/^conformance: //p' "$output" | tail -n 1)
device=$(sed -n 's/^conformance of //p' "$output" | head -n 1)
echo "figure: ${passed:-0} tests passed, $failed failed; ${runs:-no runs} on ${device:-no device}"
((status == 0 && ${passed:-0} > 0)) && [[ -n "$runs" && -n "$device" ]]
