#!/usr/bin/env bash
# Callers of malloc in a worker that trains, after a warm-up. On the CPU, which has no separate
# device memory.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" || ! -d "${STARLING_DATA:-}/tinyshakespeare" ]]; then
  echo "figure: no data: set STARLING_DATA to the folder that has mnist/ and tinyshakespeare/"
  exit 77
fi
bazel build //tests/allocations:counting-worker
exec tools/accept/e2e.sh allocations.py
