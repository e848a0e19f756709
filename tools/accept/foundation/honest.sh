#!/usr/bin/env bash
# Plants tests that cannot run in a scratch clone, which must count as skipped and as nothing else,
# and races in worker/host, which must fail the whole run, whatever a second attempt would say.
set -euo pipefail
# shellcheck source=tools/accept/foundation/before.sh
source tools/accept/foundation/before.sh
plants=$PWD/tools/accept/foundation/plants
scratch_clone
cd "$scratch"
marker="$place/raced-once"
trap 'bazel shutdown; rm -f "$marker" "$scratch.output"' EXIT
unset STARLING_DATA
wrong="" skipped=""

# tests ARGUMENT...: tools/test.sh, into $scratch.output, shown, with its last line in $last.
tests() {
  status=0
  tools/test.sh "$@" >"$scratch.output" 2>&1 || status=$?
  cat "$scratch.output"
  last=$(tail -n 1 "$scratch.output")
}

# all_skipped WHAT COUNT TARGET...: expects COUNT skipped cases and no other, with reasons.
all_skipped() {
  local what=$1 count=$2 target
  shift 2
  tests --no-sanitizers "$@"
  if ((status != 0)) || [[ "$last" != "0 passed, 0 failed, $count skipped" ]]; then
    wrong+="; $what: status $status, $last"
  fi
  for target in "$@"; do
    if ! grep -q "^skipped: $target .*: ." "$scratch.output"; then
      wrong+="; $what: no reason for $target"
    fi
  done
  skipped+="${skipped:+, }$what $count"
}

# caught WHAT TARGET: the run fails, by ThreadSanitizer.
caught=0
caught() {
  tests "$2"
  if ((status != 0)) && grep -q "^failed: $2 .*\[tsan\]" "$scratch.output" &&
    ! grep -q '\[plain\]\|\[asan\]\|^flaky' "$scratch.output"; then
    caught=$((caught + 1))
  else
    wrong+="; $1 was not caught: status $status, $last"
  fi
}

# ---- What cannot run ----
mkdir tests/planted
for file in BUILD.bazel no_gpu_test.cc no_data_test.py no_torch_test.py no_torch_test.sh; do
  cp "$plants/$file.planted" "tests/planted/$file"
done
chmod +x tests/planted/no_torch_test.sh
all_skipped planted 4 //tests/planted:no_gpu_test //tests/planted:no_data_test \
  //tests/planted:no_torch_test //tests/planted:no_torch_script_test
CUDA_HOME=none all_skipped "without the CUDA toolkit" 1 //kernels/cuda:status_test
if (source tools/accept/has_gpu.sh >/dev/null); then
  echo "this machine has a GPU: conformance on it can run"
else
  tests --no-sanitizers //kernels:conformance_gpu_test
  pattern='^0 passed, 0 failed, [1-9][0-9]* skipped$'
  if ((status != 0)) || [[ ! "$last" =~ $pattern ]] ||
    ! grep -qE '^conformance: 0 combinations passed, 0 failed, [1-9][0-9]{3} skipped$' \
      "$scratch.output"; then
    wrong+="; conformance without a GPU: status $status, $last"
  fi
  skipped+=", conformance without a GPU $(sed -n 's/.*, \([0-9]*\) skipped/\1/p' <<<"$last")"
fi

# ---- Races ----
# A lock that is missing.
sed -i '/^void GradientPool::Return/,/^}/ { /MutexLock lock/d }' worker/host/gradient_pool.cc
if git diff --quiet; then
  echo "figure: worker/host/gradient_pool.cc has no lock to take away: adapt this script"
  exit 77
fi
caught "a missing lock" //worker/host:waits_test
git checkout --quiet -- worker/host
# One that shows at the first attempt only.
sed "s|MARKER|$marker|" "$plants/race_test.cc.planted" >worker/host/planted_race_test.cc
cat "$plants/race_BUILD.planted" >>worker/host/BUILD.bazel
rm -f "$marker"
caught "a race that shows once" //worker/host:planted_race_test
if [[ ! -e "$marker" ]]; then wrong+="; the planted race did not run"; fi
# The same test without the race passes.
tests //worker/host:planted_race_test
if ((status != 0)); then wrong+="; the planted test fails without its race: $last"; fi

echo "figure: skipped: $skipped; $caught of 2 races caught${wrong}"
[[ -z "$wrong" ]] && ((caught == 2))
