#!/usr/bin/env bash
# A GPT on the bytes of tinyshakespeare.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/tinyshakespeare" ]]; then
  echo "figure: no tinyshakespeare: set STARLING_DATA to the folder that has tinyshakespeare/"
  exit 77
fi
exec tools/accept/e2e.sh gpt.py
