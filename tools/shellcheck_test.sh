#!/usr/bin/env bash
# Runs shellcheck on the files given.
set -euo pipefail
if ! command -v shellcheck >/dev/null; then
  echo "SKIPPED: shellcheck is not installed (tools/setup.sh --tests)"
  exit 0
fi
shellcheck "$@"
