#!/usr/bin/env bash
# ResNet-18's first BSP steps: 2 workers give the same bits as 1.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/cifar10" ]]; then
  echo "figure: no CIFAR-10: set STARLING_DATA to the folder that has cifar10/"
  exit 77
fi
exec tools/accept/e2e.sh cifar.py --bitwise
