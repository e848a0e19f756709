#!/usr/bin/env bash
# In every one of 1,000 seeds a second state, fed with nothing but the encoded records, is equal to
# the partition's (tests/sim/repeater.h); and damaged or foreign records are refused without a
# change, each listed here by the message that refuses it.
set -euo pipefail
seeds=1000
kinds_least=20
bazel build --ui_event_filters=-info,-debug //tests/sim:sim //common/protocol:protocol_test \
  //server/shard/core:partition_test >&2
bin=$(bazel info bazel-bin 2>/dev/null)
wrong=""

# ---- The simulated seeds ----
status=0
output=$(tools/sim.sh --seeds "$seeds") || status=$?
echo "$output"
((status == 0)) || wrong+="; the simulator failed: $(tail -n 1 <<<"$output")"
# count WHAT: how many of it, into $number; none is a miss.
count() {
  number=$(sed -nE "s/^$1 +([0-9]+)$/\1/p" <<<"$output")
  number=${number:-0}
  ((number > 0)) || wrong+="; no $1"
}
# Every record that took effect in a partition of any seed is compared.
count "records that took effect"
records=$number
count "repeated: positions compared"
((number == records)) || wrong+="; $number of $records positions only"
figure="$number of $records positions compared, "
for what in "states compared" "states compared at the end" \
  "bytes of states compared" "bytes of values compared" "bytes of slots compared" \
  "updates compared" "earlier versions compared"; do
  count "repeated: $what"
  figure+="$number $what, "
done

# ---- What is refused ----
"$bin/common/protocol/protocol_test" >&2 || wrong+="; protocol_test failed"
status=0
test=$bin/server/shard/core/partition_test
refused=$("$test" --gtest_filter='PartitionStateTest.*') || status=$?
echo "$refused"
((status == 0)) || wrong+="; partition_test failed"
# By message, without the numbers in it.
kinds=$(sed -n 's|^refused without a change: ||p' <<<"$refused" |
  sed -E 's/[0-9]+/N/g' | sort -u | wc -l)

echo "figure: $(tail -n 1 <<<"$output"); $figure$kinds kinds of damaged or foreign records" \
  "refused$wrong"
[[ -z "$wrong" ]] && ((kinds >= kinds_least))
