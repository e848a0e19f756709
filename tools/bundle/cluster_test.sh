#!/usr/bin/env bash
# The bundle's programs train together on this machine.
set -euo pipefail
output="$TEST_TMPDIR/output"
TMPDIR="$TEST_TMPDIR" "$PWD/$1" check cluster | tee "$output"
last=$(tail -n 1 "$output")
if [[ "$last" != "bundle: CPU: 1 passed, 0 failed. GPU: NOT RUN: "* ]]; then
  echo "cluster_test: the last line says: $last" >&2
  exit 1
fi
if compgen -G "$TEST_TMPDIR/starling-check.*" >/dev/null; then
  echo "cluster_test: its folder was left behind" >&2
  exit 1
fi
