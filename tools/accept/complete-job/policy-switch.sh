#!/usr/bin/env bash
# The policy changes three times while MNIST trains.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no MNIST: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
exec tools/accept/e2e.sh policy_switch.py
