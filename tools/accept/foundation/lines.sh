#!/usr/bin/env bash
# How much C++ there was before this suite's work and at its end: at the last commit before the work
# on two copies of a partition (docs/decisions/0012), which builds on it and is judged elsewhere.
set -euo pipefail
after=8ef5769
# shellcheck source=tools/accept/foundation/before.sh
source tools/accept/foundation/before.sh
if ! command -v clang-format-16 >/dev/null; then
  echo "figure: no clang-format-16: run tools/setup.sh --tests"
  exit 77
fi
exec python3 tools/accept/foundation/lines.py "$before" "$after"
