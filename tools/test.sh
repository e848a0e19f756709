#!/usr/bin/env bash
# Sets up, builds all programs, and runs every test.
#
#   tools/test.sh [--no-sanitizers] [TARGET...]
#   tools/test.sh --changed [BASE]
#
# Three runs (docs/testing.md): plain has the tests of programs and the C++
# tests whose results depend on optimization; asan (AddressSanitizer and UBSan)
# has all C++ tests but those tagged "no-sanitize"; tsan (ThreadSanitizer) has
# those tagged "tsan". With --no-sanitizers, all tests run plain instead. The
# last line is `N passed, M failed`, and `, K skipped` behind it where a test
# could not run here: test cases, each counted once and passed only if it
# passed in every configuration. Exit status 0 only if all is well.
#
# TARGET... are Bazel's patterns, instead of everything. --changed runs the
# tests that depend on what differs from the commit BASE (where the branch left
# main), end-to-end tests last. More in docs/testing.md.
#
# STARLING_DATA, if set, is the folder with the datasets that some tests read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  sed -n 's/^#   tools/usage: tools/p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

sanitizers=true changed=false targets=(//...)
case "${1:-}" in
  --changed)
    (($# <= 2)) || usage
    changed=true
    base=("${@:2}")
    set --
    ;;
  --no-sanitizers)
    sanitizers=false
    shift
    ;;
esac
for argument in "$@"; do [[ "$argument" != -* ]] || usage; done
if (($# > 0)); then targets=("$@"); fi

tools/setup.sh --tests

judge="${XDG_CACHE_HOME:-$HOME/.cache}/starling/judge"
if [[ -x "$judge/bin/python3" ]]; then
  export STARLING_JUDGE_PYTHON="$judge/bin/python3"
fi

prometheus="${XDG_CACHE_HOME:-$HOME/.cache}/starling/prometheus"
if [[ -x "$prometheus/promtool" ]]; then export STARLING_PROMETHEUS="$prometheus"; fi

events=$(mktemp -d)
trap 'rm -rf "$events"' EXIT
runs=()

# Bazel's notes on itself; the logs of failed tests are INFO events, too.
notes='^INFO: (Invocation ID|Build option|Analyzed |Found |Elapsed time|'
notes+='[0-9]+ process|Build Event|Build completed)|^(Loading|Analyzing): |^$'

# Tests that start our programs: other work on the machine may fail them, so they get a second try,
# and the report names those that needed it. Tests of threads in one process get none, nor do runs
# under sanitizers: a second try could hide a race.
retry_processes=--flaky_test_attempts='//(tests/(deploy|e2e)|tools/local):@2'

# run NAME FLAG...: `bazel test` over the targets, remembered for the report.
run() {
  local name=$1 status=0
  shift
  echo "== $name"
  # Many tests mostly wait: one process more than processors keeps these busy.
  bazel test --keep_going --test_summary=terse --show_progress_rate_limit=5 \
    --local_cpu_resources=$(($(nproc) + 1)) \
    --build_event_json_file="$events/$name.json" "$@" -- "${targets[@]}" \
    2>&1 | sed -uE "/$notes/d" || status=${PIPESTATUS[0]}
  if ((status == 4)); then status=0; fi # 4: no test matched the filters.
  runs+=("$name:$status:$events/$name.json")
}

# run_group NAME GROUP FLAG...: as run, over those of a group of changed.py.
run_group() {
  mapfile -t targets < <(sed -n "s/^$2 //p" <<<"$affected")
  if ((${#targets[@]} > 0)); then run "$1" "${@:3}"; fi
}

if $changed; then
  began=$SECONDS
  affected=$(python3 tools/testing/changed.py "${base[@]}")
  run_group asan asan --config=asan
  run_group tsan tsan --config=tsan
  run_group plain plain
  echo "== unit tests, simulator and sanitizers took $((SECONDS - began)) s"
  began=$SECONDS
  run_group end-to-end end-to-end "$retry_processes"
  echo "== end-to-end tests took $((SECONDS - began)) s"
elif ! $sanitizers; then
  run plain "$retry_processes"
else
  run plain "$retry_processes" --build_tag_filters=-library,-sanitizers-only \
    --test_tag_filters=-sanitizers-only
  run asan --config=asan --build_tests_only --test_lang_filters=cc \
    --test_tag_filters=-no-sanitize
  run tsan --config=tsan --build_tests_only --test_lang_filters=cc \
    --test_tag_filters=tsan
fi

python3 tools/testing/report.py "${runs[@]}"
