#!/usr/bin/env bash
# Stale updates with and without the guard; the delay is injected by timed waits.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no MNIST: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
exec tools/accept/e2e.sh guard.py
