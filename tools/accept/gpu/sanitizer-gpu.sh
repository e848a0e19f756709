#!/usr/bin/env bash
# compute-sanitizer checks the conformance suite on this machine's GPU: accesses that are out of
# bounds or use freed memory, and races between threads of a block.
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
