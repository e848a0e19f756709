#!/usr/bin/env bash
# Programs of before, built in a clone outside of the tree, and of now, measured in turns.
set -euo pipefail
# shellcheck source=tools/accept/foundation/before.sh
source tools/accept/foundation/before.sh
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no data: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
old="$place/before"
if [[ "$(git -C "$old" rev-parse --short=7 HEAD 2>/dev/null)" != "$before" ]]; then
  rm -rf "$old"
  git clone --quiet . "$old"
  git -C "$old" checkout --quiet --detach "$before"
fi
for tree in "$old" .; do
  (
    cd "$tree"
    bazel build --ui_event_filters=-info,-debug //tools/bench/... //tools/cli:starling \
      //worker:starling-worker //server/shard:starling-ps //server/coordinator:starling-coordinator
  ) >&2
done
(cd "$old" && bazel shutdown)
exec python3 tools/accept/foundation/speed.py "$old" .
