#!/usr/bin/env bash
# Stale updates with and without the guard; timed waits inject the delay.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no MNIST: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
exec tools/accept/e2e.sh guard.py
