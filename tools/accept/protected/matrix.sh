#!/usr/bin/env bash
# Rows come from the protobuf descriptors and the frame types; the test fails if one has no row.
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
bazel test --nocache_test_results --test_output=all \
  //tests/integration:protected_links_test >"$log" 2>&1 || status=$?
cat "$log"
echo "figure: $(grep -c '^\[       OK' "$log" || true) of" \
  "$(grep -c '^\[ RUN' "$log" || true) tables hold"
exit "$status"
