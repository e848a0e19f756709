#!/usr/bin/env bash
# The bundle, made by one command, and all that its run_gpu.sh does on this machine with a GPU.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
need_torch
tools/gpu_bundle.sh "$place/bundle"
status=0
began=$SECONDS
"$place/bundle/run_gpu.sh" >"$place/output" 2>&1 || status=$?
seconds=$((SECONDS - began))
cat "$place/output"
last=$(tail -n 1 "$place/output")
echo "figure: ${last#bundle: } in $seconds s, on $gpu"
((status == 0 && seconds < 480))
[[ "$last" == "bundle: "*" 0 failed"* && "$last" != *"NOT RUN"* ]]
# A part passes, too, where PyTorch could not be measured, or where there was no time for all of it.
for name in resnet50-bf16 gpt2-bf16 servers-resnet50-bf16 servers-gpt2-bf16; do
  if ! grep -q "^figure $name .*ratio=[0-9]" "$place/output"; then
    echo "figure: ${last#bundle: } in $seconds s, and no ratio of $name, on $gpu"
    exit 1
  fi
done
