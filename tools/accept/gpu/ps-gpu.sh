#!/usr/bin/env bash
# What two shards on the same machine cost at staleness 1: ResNet-50 at batch 256 is judged, GPT-2 printed.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
status=0
output=$("$bundle" check --only servers 2>&1) || status=$?
echo "$output"
figure="" ratio="" other=""
for net in resnet50 gpt2; do
  line=$(grep "^figure servers-$net-bf16 " <<<"$output" || true)
  if [[ "$net" == gpt2 ]]; then other=$(value ratio "$line"); else ratio=$(value ratio "$line"); fi
  figure+="${figure:+; }$net $(value ratio "$line") of the local update: $(value servers "$line") of $(value local "$line") samples/s"
done
echo "figure: $figure, on $gpu"
((status == 0)) && [[ -n "$other" ]] && at_least "$ratio" 0.95
