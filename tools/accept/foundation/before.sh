#!/usr/bin/env bash
# To be sourced in the repository's root: the commit before the work that this suite judges, and
# where its programs and scratch clones are kept, outside of the tree.
before=b1d3845
# shellcheck disable=SC2034  # for those who source this
place="${XDG_CACHE_HOME:-$HOME/.cache}/starling/foundation"
mkdir -p "$place"
if ! git cat-file -e "$before^{commit}" 2>/dev/null; then
  echo "figure: the commit $before is not in this clone"
  exit 77
fi

# two_processors: this script, and what it starts, runs on two processors.
two_processors() {
  local processors
  processors=$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2], sep=",")')
  taskset --pid --cpu-list "$processors" $$ >&2
}

# scratch_clone: this commit in $scratch. Always at the same place, so that Bazel's server and its
# outputs of the last time serve again.
scratch_clone() {
  scratch="$place/scratch"
  rm -rf "$scratch"
  git clone --quiet . "$scratch"
}
