#!/usr/bin/env bash
# Every operator in every type against the reference in double precision. bf16 runs twice, the
# second time without the CPU's bf16 instructions.
set -euo pipefail
tests=(conformance_test conformance_avx2_test)
bazel build --ui_event_filters=-info,-debug "${tests[@]/#///kernels:}" >&2
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0 passed=0 failed=0
for test in "${tests[@]}"; do
  arguments=() environment=()
  if [[ "$test" == conformance_avx2_test ]]; then
    arguments=('--gtest_filter=*_bf16_*:PaddingTest.*')
    environment=(DNNL_MAX_CPU_ISA=AVX2)
  fi
  env "${environment[@]}" "bazel-bin/kernels/$test" "${arguments[@]}" >"$output" 2>&1 || status=1
  grep -v '^\[ *\(RUN\|OK\) *\]' "$output" || true
  # A filter that matches nothing also exits with 0.
  if ! grep -q '^\[  PASSED  \] [1-9][0-9]* test' "$output"; then status=1; fi
  of_test=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*\.$/\1/p' "$output")
  passed=$((passed + ${of_test:-0}))
  failed=$((failed + $(grep -c '^\[  FAILED  \] .*)$' "$output" || true)))
  runs=$(sed -n 's/^conformance: //p' "$output" | tail -n 1)
done
echo "figure: $passed tests passed, $failed failed; ${runs:-no runs}"
((status == 0 && passed > 0)) && [[ -n "$runs" ]]
