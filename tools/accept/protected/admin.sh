#!/usr/bin/env bash
# The admin ports of real daemons, with good and bad requests.
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
tools/accept/e2e.sh admin_test.py 2>&1 | tee "$log" || status=$?
echo "figure: $(grep -c ' \.\.\. ok$' "$log") of $(sed -n 's/^Ran \([0-9]*\) tests.*/\1/p' "$log")"
if grep -q ' \.\.\. skipped' "$log"; then exit 77; fi
exit "$status"
