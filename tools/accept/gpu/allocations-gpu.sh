#!/usr/bin/env bash
# The same as the line allocations, on this machine's GPU, with the memory taken there.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
if [[ ! -d "${STARLING_DATA:-}/mnist" || ! -d "${STARLING_DATA:-}/tinyshakespeare" ]]; then
  echo "figure: no data: set STARLING_DATA to the folder that has mnist/ and tinyshakespeare/"
  exit 77
fi
bazel build //tests/allocations:counting-worker
tools/accept/e2e.sh allocations.py --cuda-library "$bundle/libstarling_cuda.so"
