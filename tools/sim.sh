#!/bin/sh
# Simulates whole clusters, one thread and one seed each, under faults (tests/sim/).
#   tools/sim.sh --seeds N [--seed FIRST]   N seeds; prints what was reached; 1: violation or zero.
#                                           The first violation comes with the fewest faults for it
#   tools/sim.sh --mutants [--defence NAME]  masks each defence in turn: its own checker must bite
set -eu
cd "$(dirname "$0")/.."

usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}

config=
for argument in "$@"; do
  case "$argument" in
    --mutants) config=--config=mutants ;;
    --help | -h) usage ;;
  esac
done
[ $# -gt 0 ] || usage

# What is masked there, too.
[ -z "$config" ] ||
  bazel test "$config" //common/checkpoint:checkpoint_test //tests/sim:shrink_test
# $config is one word or empty. shellcheck disable=SC2086
bazel build $config //tests/sim:sim
# shellcheck disable=SC2086
exec "$(bazel info $config bazel-bin 2>/dev/null)/tests/sim/sim" "$@"
