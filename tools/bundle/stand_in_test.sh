#!/usr/bin/env bash
# What the bundle measures on a GPU, with the CPU behind a GPU's memory in its place, and with a program
# that answers as PyTorch's peer does.
set -euo pipefail
folder="$TEST_TMPDIR/bundle"
mkdir "$folder"
cp "$1" "$folder/starling-bundle"
cp "$2" "$folder/libstarling_cuda.so"
cat >"$folder/python3" <<'PEER'
#!/bin/sh
echo '{"version": "stand-in"}'
while read -r request; do
  echo "asked $request" >&2
  echo '{"units": 500, "seconds": 2.5}'
done
PEER
chmod +x "$folder/python3"
export TMPDIR="$TEST_TMPDIR"

fail() {
  echo "stand_in_test: $*" >&2
  exit 1
}

# check_gpu ARGUMENT...: into $output.
check_gpu() {
  output=$("$folder/starling-bundle" check --on gpu "$@") || fail "check --on gpu $*: $output"
  echo "$output"
}

number='[0-9]+\.[0-9]+'
check_gpu --only compute --net lenet --torch-python "$folder/python3"
for precision in bf16 fp32; do
  line=$(grep "^figure lenet-$precision " <<<"$output") || fail "no figure of lenet in $precision"
  pattern="^figure lenet-$precision ours=$number tflops=$number torch=200\.0 ratio=$number "
  pattern+="least=$number greatest=$number version=stand-in$"
  [[ "$line" =~ $pattern ]] || fail "expected ours, torch and their ratio, got: $line"
  # PyTorch's place is always as fast, so the ratio of medians is the median of ratios.
  awk '{ for (i = 3; i <= NF; ++i) { split($i, pair, "="); of[pair[1]] = pair[2] }
         difference = of["ratio"] - of["ours"] / of["torch"]
         exit !(of["ours"] > 0 && of["least"] <= of["ratio"] && of["ratio"] <= of["greatest"] &&
                difference * difference < 1e-5) }' <<<"$line" || fail "figures contradict each other: $line"
done
[[ "$(tail -n 1 <<<"$output")" == "bundle: CPU: 0 passed, 0 failed. GPU: 1 passed, 0 failed" ]] ||
  fail "the last line says: $(tail -n 1 <<<"$output")"

check_gpu --only servers --net lenet
grep -qE "^figure servers-lenet-bf16 servers=$number local=$number ratio=$number$" <<<"$output" ||
  fail "no figure of servers"
