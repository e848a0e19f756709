#!/usr/bin/env bash
# The whole tree is formatted (tools/format.py --check). It reads the tree itself, not what Bazel
# hands over, so it runs each time.
set -euo pipefail
if ! command -v clang-format-16 >/dev/null; then
  echo "SKIPPED: clang-format-16 is not installed (tools/setup.sh --tests)"
  exit 0
fi
exec python3 "$(dirname "$(readlink -f "$1")")/format.py" --check
