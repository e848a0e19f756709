#!/usr/bin/env bash
# Sets up, builds all programs, and runs every test.
#
#   tools/test.sh [--no-sanitizers]
#
# Three runs (docs/testing.md): plain has the tests of programs and the C++
# tests whose results depend on optimization; asan (AddressSanitizer and UBSan)
# has all C++ tests but those tagged "no-sanitize"; tsan (ThreadSanitizer) has
# those tagged "tsan". With --no-sanitizers, all tests run plain instead. The
# last line is `N passed, M failed`: test cases, each counted once and passed
# only if it passed in every configuration. Exit status 0 only if all is well.
# Tests of real processes and sockets (real_processes below) that fail get one
# more try, since machines are shared; the report names those that needed it.
#
# STARLING_DATA, if set, is the folder with the datasets that some tests read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sanitizers=true
case "${1:-}" in
  "") ;;
  --no-sanitizers) sanitizers=false ;;
  *)
    echo "usage: tools/test.sh [--no-sanitizers]" >&2
    exit 2
    ;;
esac

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

real_processes='//(tests/(deploy|e2e|integration)|tools/(local|cli|accept)|common/(admin|transport|daemon)|'
real_processes+='server/[a-z]+/(admin|host)|worker/host)'

# run NAME FLAG...: `bazel test` over everything, remembered for the report.
run() {
  local name=$1 status=0
  shift
  echo "== $name"
  bazel test --keep_going --test_summary=terse --show_progress_rate_limit=5 \
    --flaky_test_attempts="$real_processes@2" \
    --build_event_json_file="$events/$name.json" "$@" //... \
    2>&1 | sed -uE "/$notes/d" || status=${PIPESTATUS[0]}
  if ((status == 4)); then status=0; fi # 4: no test matched the filters.
  runs+=("$name:$status:$events/$name.json")
}

if $sanitizers; then
  run plain --build_tag_filters=-library,-sanitizers-only --test_tag_filters=-sanitizers-only
  run asan --config=asan --build_tests_only --test_lang_filters=cc \
    --test_tag_filters=-no-sanitize
  run tsan --config=tsan --build_tests_only --test_lang_filters=cc \
    --test_tag_filters=tsan
else
  run plain
fi

python3 tools/testing/report.py "${runs[@]}"
