#!/usr/bin/env bash
# Runs shellcheck on the given files.
set -euo pipefail
if ! command -v shellcheck >/dev/null; then
  echo "SKIPPED: shellcheck is not installed (tools/setup.sh --tests)"
  exit 0
fi
shellcheck "$@"
