#!/usr/bin/env bash
# Accuracy on MNIST under each policy.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no MNIST: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
exec tools/accept/e2e.sh mnist.py
