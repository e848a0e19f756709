#!/usr/bin/env bash
# compute-sanitizer watches the conformance suite on this machine's GPU: accesses out of bounds or of
# memory that is gone, and threads of a block that race.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
figure="" holds=true
for tool in memcheck racecheck; do
  part "$tool"
  verdict=$(report "part('$tool gpu')['verdict']")
  figure+="${figure:+; }$tool: $verdict: $(report "part('$tool gpu')['text']")"
  [[ "$verdict" == passed ]] || holds=false
done
echo "figure: $figure, on $gpu"
$holds
