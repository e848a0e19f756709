#!/usr/bin/env bash
# Training on the CPU beside PyTorch, which must be there (tools/setup.sh --peers).
set -euo pipefail
declare -A bounds=([lenet]=1.2 [resnet18]=1.0 [gpt]=1.0)
output=$(tools/bench.sh compute) || {
  echo "$output"
  echo "figure: the bench failed"
  exit 1
}
echo "$output"
figure="" holds=true
for net in lenet resnet18 gpt; do
  ratio=$(sed -n "s/^compute fp32 $net ratio: \([0-9.]*\) .*/\1/p" <<<"$output")
  figure+="${figure:+, }$net ${ratio:-none}"
  awk -v r="${ratio:-0}" -v b="${bounds[$net]}" 'BEGIN { exit !(r >= b) }' || holds=false
done
echo "figure: $figure"
$holds
