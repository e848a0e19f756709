#!/usr/bin/env bash
# How much C++ there is, before and now.
set -euo pipefail
# shellcheck source=tools/accept/foundation/before.sh
source tools/accept/foundation/before.sh
if ! command -v clang-format-16 >/dev/null; then
  echo "figure: no clang-format-16: run tools/setup.sh --tests"
  exit 77
fi
exec python3 tools/accept/foundation/lines.py "$before"
