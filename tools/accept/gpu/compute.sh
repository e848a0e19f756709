#!/usr/bin/env bash
# Training on the CPU against PyTorch, which must be installed (tools/setup.sh --peers), in fp32,
# and in bf16 if the CPU multiplies it.
set -euo pipefail
declare -A bounds=([lenet]=1.2 [resnet18]=1.0 [gpt]=1.0)
output=$(tools/bench.sh compute) || {
  echo "$output"
  echo "figure: the bench failed"
  exit 1
}
echo "$output"
figure="" holds=true
for precision in fp32 bf16; do
  if [[ $precision == bf16 ]] && ! grep -q '^compute bf16 ' <<<"$output"; then
    figure+="; bf16: this CPU does not multiply it"
    continue
  fi
  figure+="${figure:+; }$precision: "
  for net in lenet resnet18 gpt; do
    ratio=$(sed -n "s/^compute $precision $net ratio: \([0-9.]*\) .*/\1/p" <<<"$output")
    figure+="$net ${ratio:-none} "
    awk -v r="${ratio:-0}" -v b="${bounds[$net]}" 'BEGIN { exit !(r >= b) }' || holds=false
  done
  figure=${figure% }
done
echo "figure: $figure"
$holds
