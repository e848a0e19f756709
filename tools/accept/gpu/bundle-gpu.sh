#!/usr/bin/env bash
# Everything that the bundle's run_gpu.sh does on this machine with a GPU.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
need_torch
part
last=$(report 'report["last"]')
echo "figure: ${last#bundle: } in $part_seconds s, on $gpu"
((part_status == 0 && part_seconds < 480))
[[ "$last" == "bundle: "*" 0 failed"* && "$last" != *"NOT RUN"* ]]
# A part also passes if PyTorch could not be measured, or if there was no time for all of it.
for name in resnet50-bf16 gpt2-bf16 servers-resnet50-bf16 servers-gpt2-bf16; do
  if [[ "$(report "figure('$name', 'ratio')")" == none ]]; then
    echo "figure: ${last#bundle: } in $part_seconds s, and no ratio of $name, on $gpu"
    exit 1
  fi
done
