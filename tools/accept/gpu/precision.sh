#!/usr/bin/env bash
# The effect of storing and multiplying in two bytes on what is learned.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no MNIST: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
exec tools/accept/e2e.sh precision.py
