#!/usr/bin/env bash
# The cost of two shards on the same machine at staleness 1: ResNet-50 at batch 256 is judged, GPT-2
# is only printed.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
part servers
ratio=$(report 'figure("servers-resnet50-bf16", "ratio")')
other=$(report 'figure("servers-gpt2-bf16", "ratio")')
figure=""
for net in resnet50 gpt2; do
  name="servers-$net-bf16"
  figure+="${figure:+; }$net $(report "figure('$name', 'ratio')") of the local update: "
  figure+="$(report "figure('$name', 'servers')") of $(report "figure('$name', 'local')") samples/s"
done
echo "figure: $figure, on $gpu"
((part_status == 0)) && [[ "$other" != none ]] && at_least "$ratio" 0.95
