#!/usr/bin/env bash
# whole_test.sh NOTE: runs tools/test.sh unchanged, and judges its last line: nothing failed, and
# not because hardly any test ran. The figure ends with NOTE.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
least=5000 # test cases; conformance alone has as many
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
tools/test.sh 2>&1 | tee "$output" || status=$?
last=$(tail -n 1 "$output")
echo "figure: $last (expected $least or more, and 0 failed), $1"
((status == 0)) && [[ "$last" =~ ^([0-9]+)\ passed,\ 0\ failed$ ]] && ((BASH_REMATCH[1] >= least))
