#!/usr/bin/env bash
# fresh_root.sh [OPTION...]: in a fresh Debian 12 root with only git installed, runs the quickstart,
# twice, and `tools/test.sh OPTION...`. Takes about an hour on 2 cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tools/accept/debian_root.sh
source tools/accept/debian_root.sh

accuracy_of() { sed -n 's/^.*test_accuracy=\([0-9.]*\).*$/\1/p' "$outputs/$1" | tail -n 1; }

began=$SECONDS
run first tools/quickstart.sh
first_seconds=$((SECONDS - began))
began=$SECONDS
run second tools/quickstart.sh
second_seconds=$((SECONDS - began))
run tests "tools/test.sh $*"
inside "bazel shutdown" || true
accuracy=$(accuracy_of first) again=$(accuracy_of second)
tests=$(tail -n 1 "$outputs/tests")
echo "figure: accuracy ${accuracy:-none}, first run ${first_seconds} s with the download," \
  "second ${second_seconds} s; $tests"
awk -v a="${accuracy:-0}" -v b="${again:-0}" 'BEGIN { exit !(a >= 0.96 && b >= 0.96) }'
((second_seconds <= 60))
[[ "$tests" =~ ^[0-9]+\ passed,\ 0\ failed(,|$) ]]
