#!/usr/bin/env bash
# tools/test.sh --changed in a scratch clone whose outputs are up to date, after one file of a core
# got other code.
set -euo pipefail
bound_seconds=240
file=server/shard/core/partition.cc
# shellcheck source=tools/accept/foundation/before.sh
source tools/accept/foundation/before.sh
two_processors
scratch_clone
cd "$scratch"
trap 'bazel shutdown' EXIT

# Before the change everything that it affects is built.
echo >>"$file"
affected=$(python3 tools/testing/changed.py HEAD)
git checkout --quiet -- "$file"
# build FLAG GROUP...: what --changed will build in one configuration.
build() {
  local flag=$1
  local -a targets=()
  shift
  for group in "$@"; do
    while read -r target; do targets+=("$target"); done < <(sed -n "s/^$group //p" <<<"$affected")
  done
  if ((${#targets[@]} > 0)); then
    bazel build --ui_event_filters=-info,-debug "$flag" "${targets[@]}" >&2
  fi
}
build --config=asan asan
build --config=tsan tsan
build --keep_going plain end-to-end

# Other code each time, so that no cache has it.
echo "namespace starling { long ChangedForAcceptance() { return $(date +%s); } }" >>"$file"
output=$(mktemp)
trap 'bazel shutdown; rm -f "$output"' EXIT
status=0
tools/test.sh --changed HEAD >"$output" 2>&1 || status=$?
cat "$output"
units=$(sed -n 's/^== unit tests, simulator and sanitizers took \([0-9]*\) s$/\1/p' "$output")
whole=$(sed -n 's/^== end-to-end tests took \([0-9]*\) s$/\1/p' "$output")
echo "figure: ${units:-none} s for unit tests, simulator and sanitizers, then" \
  "${whole:-none} s for end-to-end tests; $(tail -n 1 "$output")"
((status == 0 && ${units:-9999} <= bound_seconds))
