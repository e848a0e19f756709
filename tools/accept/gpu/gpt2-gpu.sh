#!/usr/bin/env bash
# GPT-2 124M (1,024 tokens, batch 16) in bf16 on this machine's GPU, forward, backward and step,
# against torch.compile.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
against_torch gpt2 1.0
