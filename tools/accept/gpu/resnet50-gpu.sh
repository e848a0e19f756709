#!/usr/bin/env bash
# ResNet-50 (224 x 224, batch 256) in bf16 on this machine's GPU, forward, backward and step,
# against torch.compile.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
against_torch resnet50 1.0
