#!/usr/bin/env bash
# Each defence, masked alone, is caught by the checker of its promise; and some of them are new.
set -euo pipefail
new_least=6
# shellcheck source=tools/accept/foundation/before.sh
source tools/accept/foundation/before.sh
status=0
output=$(tools/sim.sh --mutants) || status=$?
echo "$output"
# A row: the defence's name, the promise, `caught by seed N`.
caught=$(sed -nE 's/^([a-z0-9-]+) .* caught by seed [0-9]+$/\1/p' <<<"$output" | sort)
known=$(git show "$before:common/defences.h" | sed -n '/kNames/,/};/p' |
  grep -oE '"[a-z0-9-]+"' | tr -d '"' | sort)
new=$(comm -23 <(echo "$caught") <(echo "$known") | paste -sd ' ')
count=$(wc -w <<<"$new")
echo "figure: $(grep -c . <<<"$caught") caught, $(tail -n 1 <<<"$output"); $count new: ${new:-none}"
((status == 0 && count >= new_least))
