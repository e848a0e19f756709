#!/usr/bin/env bash
# compute-sanitizer watches the conformance suite on this machine's GPU: accesses out of bounds or of
# memory that is gone, and threads of a block that race.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
sanitizer=$(command -v compute-sanitizer || true)
if [[ -z "$sanitizer" ]]; then sanitizer="${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"; fi
if [[ ! -x "$sanitizer" ]]; then
  echo "figure: no compute-sanitizer on the PATH, nor $sanitizer: install the toolkit's"
  exit 77
fi
export STARLING_CONFORMANCE_DEVICE=gpu
log="$place/log" figure="" holds=true
for tool in memcheck racecheck; do
  status=0
  "$sanitizer" --tool "$tool" --error-exitcode 9 "$bundle" conformance --gtest_brief=1 >"$log" 2>&1 || status=$?
  cat "$log"
  passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*\.$/\1/p' "$log" | tail -n 1)
  said=$(sed -n 's/^=* *\(ERROR\|RACECHECK\) SUMMARY: //p' "$log" | tail -n 1)
  figure+="${figure:+; }$tool: ${said:-no summary}, ${passed:-0} tests passed"
  ((status == 0 && ${passed:-0} > 0)) && [[ -n "$said" ]] || holds=false
done
echo "figure: $figure, on $gpu"
$holds
