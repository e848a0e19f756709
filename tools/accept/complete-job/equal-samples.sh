#!/usr/bin/env bash
# Bounded staleness against BSP, at equal samples.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" || ! -d "${STARLING_DATA:-}/tinyshakespeare" ]]; then
  echo "figure: no data: set STARLING_DATA to the folder that has mnist/ and tinyshakespeare/"
  exit 77
fi
exec tools/accept/e2e.sh equal_samples.py
