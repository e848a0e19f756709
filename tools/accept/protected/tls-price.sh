#!/usr/bin/env bash
# The cost of mutual TLS for a job: a plain cluster and one over TLS in turns.
set -euo pipefail
output=$(tools/bench.sh overhead --tls)
echo "$output"
price=$(sed -n 's/^tls ratio: median \([0-9.]*\).*/\1/p' <<<"$output")
if [[ -z "$price" ]]; then
  echo "figure: no ratio was printed"
  exit 1
fi
echo "figure: $price of the plain cluster's samples/s"
