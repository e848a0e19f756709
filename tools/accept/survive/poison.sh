#!/usr/bin/env bash
# A worker whose gradients are not finite again and again is quarantined and named, and harms no
# job: in BSP, in SSP and async, and where the job goes back by itself, which it does once.
set -euo pipefail
status=0
output=$(bazel test --nocache_test_results --test_output=all //tests/e2e:poison_test) || status=$?
echo "$output"
if ((status != 0)); then
  failed=$(sed -nE 's/^(FAIL|ERROR): (test_[a-z_]+).*/\2/p' <<<"$output" | sort -u | paste -sd ' ')
  echo "figure: not so: ${failed:-no test ran: see above}"
  exit 1
fi
found=$(sed -n 's/^found: //p' <<<"$output" | paste -sd ';' | sed 's/;/; /g')
echo "figure: $found"
[[ -n "$found" ]]
