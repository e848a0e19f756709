#!/usr/bin/env bash
# The simulator runs the hosts that ship: nothing under tests/ stands on a core directly, and what
# 1,000 seeds execute of the host files.
set -euo pipefail
bound_percent=85
folder=tools/accept/foundation
# shellcheck source=tools/accept/foundation/before.sh
source "$folder/before.sh"
two_processors

# A transcript only prints what a core did, and a state only repeats it.
cores='set(//server/coordinator/core:all //server/shard/core:all //worker/core:all)'
cores="($cores except set(//worker/core:transcript //server/shard/core:partition_state))"
direct=$({
  bazel query --noshow_progress "rdeps(//tests/..., $cores, 1) intersect //tests/..."
  grep -rE --include='*.cc' --include='*.h' '^#include ".*/core/' tests |
    grep -vE 'worker/core/testing/transcript|shard/core/partition_state' || true
} | paste -sd ' ')

# Only the host files are instrumented, each compiled alone. GCC writes its notes beside the
# objects, which no sandbox keeps; and no cache may answer, so that each run's command lines are
# new.
hosts='^(server/[a-z]+|worker)/host/[a-z_]+\.cc$'
bazel build --ui_event_filters=-info,-debug --strategy=CppCompile=local \
  --noremote_upload_local_results --linkopt=--coverage --define=alone=true \
  --per_file_copt="$hosts@--coverage,-fprofile-update=prefer-atomic,-O0,-DRUN=$(date +%s)" \
  //tests/sim:sim >&2
bin=$(bazel info bazel-bin 2>/dev/null)
counted=$(mktemp -d)
trap 'rm -rf "$counted"' EXIT
status=0
ran=$(GCOV_PREFIX="$counted" "$bin/tests/sim/sim" --seeds 1000 --jobs 2) || status=$?
echo "$ran"
python3 "$folder/coverage.py" "$counted" "$bin" "$folder/hosts" | tee "$counted/table"
percent=$(sed -nE 's/^all .* ([0-9.]+) %$/\1/p' "$counted/table")
echo "figure: $percent % of the lines of the host files, $(tail -n 1 <<<"$ran");" \
  "under tests/ on a core: ${direct:-nothing}"
((status == 0)) && [[ -z "$direct" ]] &&
  python3 -c "import sys; sys.exit($percent < $bound_percent)"
