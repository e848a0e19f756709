#!/usr/bin/env bash
# tools/test.sh in a fresh Debian root: downloads, the build without any cache, all configurations.
# The figure says when other processes took processor time meanwhile.
set -euo pipefail
bound_seconds=1800
# shellcheck source=tools/accept/foundation/before.sh
source tools/accept/foundation/before.sh
two_processors
# shellcheck source=tools/accept/debian_root.sh
source tools/accept/debian_root.sh
python3 tools/accept/foundation/others.py "$root" >"$outputs/others" &
watcher=$!
began=$SECONDS
run tests tools/test.sh
took=$((SECONDS - began))
kill "$watcher"
wait "$watcher" || true
inside "bazel shutdown" || true
last=$(tail -n 1 "$outputs/tests")
echo "figure: $last, $((took / 60)) min $((took % 60)) s; $(cat "$outputs/others")"
[[ "$last" =~ ^[0-9]+\ passed,\ 0\ failed(,|$) ]] && ((took <= bound_seconds))
