#!/usr/bin/env bash
# A busy machine is not taken for a dead one.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no MNIST: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
exec tools/accept/e2e.sh calm.py
