#!/usr/bin/env bash
# The bundle's GPU measurements, with a CPU that simulates a GPU's memory, and with a program that
# answers like PyTorch's peer.
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

# check_gpu ARGUMENT...: output into $output.
check_gpu() {
  output=$("$folder/starling-bundle" check --on gpu "$@") || fail "check --on gpu $*: $output"
  echo "$output"
}

number='[0-9]+\.[0-9]+'
json="$TEST_TMPDIR/report.json"
check_gpu check compute lenet --torch-python "$folder/python3" --json "$json"
for precision in bf16 fp32; do
  line=$(grep "^figure lenet-$precision " <<<"$output") || fail "no figure of lenet in $precision"
  pattern="^figure lenet-$precision ours=$number tflops=$number torch=200\.0 ratio=$number "
  pattern+="least=$number greatest=$number version=stand-in$"
  [[ "$line" =~ $pattern ]] || fail "expected ours, torch and their ratio, got: $line"
  # PyTorch's stand-in has a constant speed, so the ratio of medians is the median of ratios.
  awk '{ for (i = 3; i <= NF; ++i) { split($i, pair, "="); of[pair[1]] = pair[2] }
         difference = of["ratio"] - of["ours"] / of["torch"]
         exit !(of["ours"] > 0 && of["least"] <= of["ratio"] && of["ratio"] <= of["greatest"] &&
                difference * difference < 1e-5) }' <<<"$line" ||
    fail "figures contradict each other: $line"
done
[[ "$(tail -n 1 <<<"$output")" == "bundle: CPU: 0 passed, 0 failed. GPU: 2 passed, 0 failed" ]] ||
  fail "the last line says: $(tail -n 1 <<<"$output")"

# The report for programs.
judge() {
  python3 -c "
import json, sys
report = json.load(open(sys.argv[1]))
parts = report['parts']
assert $1, report" "$json" || fail "the report is not as expected: $1"
}
judge '[part["name"] for part in parts] == ["check gpu", "compute lenet gpu"]'
judge 'all(part["verdict"] == "passed" for part in parts)'
judge 'all(part["seconds"] <= part["limit_seconds"] for part in parts)'
judge 'parts[1]["figures"]["lenet-bf16"]["torch"] == "200.0"'
judge 'report["gpu"]["usable"]'
judge 'set(report["gpu"]) == {"usable", "name", "driver", "cudnn", "cublas"}'
judge 'report["last"] == "bundle: CPU: 0 passed, 0 failed. GPU: 2 passed, 0 failed"'

check_gpu servers lenet
grep -qE "^figure servers-lenet-bf16 servers=$number local=$number ratio=$number$" <<<"$output" ||
  fail "no figure of servers"

# memcheck requires compute-sanitizer: its summary, its errors, and its absence.
check_gpu memcheck
grep -q '^memcheck gpu: NOT RUN: no compute-sanitizer' <<<"$output" ||
  fail "expected NOT RUN without a sanitizer"
cat >"$folder/sanitizer" <<'SANITIZER'
#!/bin/sh
[ "$1 $2 $3" = "--tool memcheck --error-exitcode" ] || exit 3
echo "[  PASSED  ] 3 tests."
echo "========= ERROR SUMMARY: 0 errors"
[ ! -e "${0%/*}/errors" ] || exit "$4"
SANITIZER
chmod +x "$folder/sanitizer"
check_gpu memcheck --sanitizer "$folder/sanitizer"
grep -q '^memcheck gpu: passed: ' <<<"$output" || fail "expected memcheck to pass"
touch "$folder/errors"
if output=$("$folder/starling-bundle" check memcheck --sanitizer "$folder/sanitizer"); then
  fail "memcheck passed although the sanitizer found errors"
fi
grep -q '^memcheck gpu: FAILED: .*sanitizer found errors' <<<"$output" ||
  fail "does not say what the sanitizer found: $output"

# Hazards in kernels that cuDNN generates are counted; one in a kernel of ours is an error.
cat >"$folder/sanitizer" <<'SANITIZER'
#!/bin/sh
[ "$1 $2 $3" = "--tool racecheck --error-exitcode" ] || exit 3
for kernel in $(cat "${0%/*}/kernels"); do
  echo "========= Error: Race reported between Read access at $kernel+0x2f0"
  echo "=========     and Write access at $kernel+0x6ba0 [16 hazards]"
done
echo "[  PASSED  ] 3 tests."
echo "========= RACECHECK SUMMARY: $(wc -w <"${0%/*}/kernels") hazards displayed (errors, warnings)"
exit "$4"
SANITIZER
echo "cudnn_generated_a_kernel0_0 cudnn_generated_b_kernel0_0" >"$folder/kernels"
check_gpu racecheck --sanitizer "$folder/sanitizer"
grep -q '^racecheck gpu: passed: .* hazards in kernels that cuDNN made' <<<"$output" ||
  fail "expected hazards of cuDNN's to be counted: $output"
echo "cudnn_generated_a_kernel0_0 starling::cudnn_generated_b" >"$folder/kernels"
if output=$("$folder/starling-bundle" check racecheck --sanitizer "$folder/sanitizer"); then
  fail "racecheck passed although a kernel of ours has a race"
fi
grep -q '^racecheck gpu: FAILED: .*sanitizer found errors' <<<"$output" ||
  fail "does not say what racecheck found: $output"

status=0
"$folder/starling-bundle" check compute resnet49 2>"$folder/error" || status=$?
((status == 2)) || fail "an unknown net: status $status, expected 2"
grep -q '"resnet49": expected parts (check, conformance, ' "$folder/error" ||
  fail "does not say which parts there are"
