#!/usr/bin/env bash
# Acceptance: measures a named suite of promises, line by line.
#
#   tools/accept.sh SUITE [--only LINE] [--again] [--bundle DIR]
#
# A suite is a folder under tools/accept/ with a file `lines` (one row per line: id | description |
# bound) and a script `<id>.sh` for each line. A script runs in the repository's root, prints
# `figure: ...` with its measurement, and exits with 0 (the bound holds), 75 (NOT RUN: it judges
# hardware that this machine lacks, and the figure says why), 77 (could not run: a miss), or another
# status (a miss). Its other output is kept, and the path is printed.
#
# Verdicts of a clean tree are kept per commit, outside the tree, and reused unless --again is
# given. A verdict counts only for the commit at which it was measured: if the tree changed
# meanwhile, the line is a miss and nothing is kept. The last line says which lines were not run.
#
# --bundle DIR judges this machine's GPU by a bundle that was built elsewhere (tools/gpu_bundle.sh):
# only the lines in the suite's file `bundle_lines`, which need neither Bazel nor a network. Nothing
# is kept; DIR/COMMIT says what is judged.
# Exit status: 0 no miss, 1 any miss, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: tools/accept.sh SUITE [--only LINE] [--again] [--bundle DIR]" >&2
  echo "suites: $(find tools/accept -mindepth 1 -maxdepth 1 -type d -printf '%f ')" >&2
  exit 2
}

suite="" only="" again=false bundle=""
while (($# > 0)); do
  case "$1" in
    --only)
      (($# >= 2)) || usage
      only=$2
      shift
      ;;
    --again) again=true ;;
    --bundle)
      (($# >= 2)) || usage
      bundle=$2
      shift
      ;;
    -*) usage ;;
    *)
      [[ -z "$suite" ]] || usage
      suite=$1
      ;;
  esac
  shift
done
folder="tools/accept/$suite"
[[ -n "$suite" && -f "$folder/lines" ]] || usage

# The commit of a clean tree; otherwise "uncommitted".
tree() {
  local commit changes
  if commit=$(git rev-parse --verify --quiet HEAD) 2>/dev/null &&
    changes=$(git status --porcelain 2>/dev/null) && [[ -z "$changes" ]]; then
    echo "$commit"
  else
    echo uncommitted
  fi
}

if [[ -n "$bundle" ]]; then
  if [[ ! -f "$folder/bundle_lines" || ! -x "$bundle/run_gpu.sh" ]]; then
    echo "accept: --bundle wants a suite that judges bundles (gpu) and a bundle's folder," \
      "with run_gpu.sh" >&2
    exit 2
  fi
  STARLING_BUNDLE=$(cd "$bundle" && pwd)
  export STARLING_BUNDLE
  at=bundle
  echo "bundle: $bundle, commit $(cat "$bundle/COMMIT")"
else
  at=$(tree)
fi
clean=false
[[ "$at" == bundle || "$at" == uncommitted ]] || clean=true
store="${XDG_CACHE_HOME:-$HOME/.cache}/starling/accept/$suite/$at"
mkdir -p "$store"

# measure ID: runs its script, and writes `verdict|figure` to $store/ID.
measure() {
  local id=$1 status=0 figure verdict now
  local log="$store/$id.log"
  rm -f "$store/$id"
  if [[ -x "$folder/$id.sh" ]]; then
    "$folder/$id.sh" >"$log" 2>&1 </dev/null || status=$?
    figure=$(sed -n 's/^figure: //p' "$log" | tail -n 1)
  else
    status=77 figure="no script $folder/$id.sh"
  fi
  case "$status:$figure" in
    0:) verdict="MISS" figure="printed no figure" ;;
    0:*) verdict="holds" ;;
    75:*) verdict="NOT RUN" ;;
    77:*) verdict="MISS (could not run)" ;;
    *) verdict="MISS" ;;
  esac
  if $clean && now=$(tree) && [[ "$now" != "$at" ]]; then
    verdict="MISS (changed)"
    figure="the tree is at $now now, and was at $at when this line began: ${figure:-}"
  fi
  echo "$verdict|${figure:-none (exit status $status)}" >"$store/$id"
}

trim() { sed 's/^ *//; s/ *$//' <<<"$1"; }

misses=0 shown=0 not_run="" could_not=""
row='%-20s  %-28s  %-24s  %s\n'
# shellcheck disable=SC2059
printf "$row" line figure bound verdict
while IFS='|' read -r id description bound; do
  id=$(trim "$id")
  [[ -z "$id" || "$id" == "#"* ]] && continue
  [[ -n "$only" && "$id" != "$only" ]] && continue
  [[ -n "$bundle" ]] && ! grep -qx "$id" "$folder/bundle_lines" && continue
  shown=$((shown + 1))
  note=""
  if $clean && ! $again && [[ -f "$store/$id" ]]; then
    note=" (kept)"
  else
    measure "$id"
  fi
  IFS='|' read -r verdict figure <"$store/$id"
  if [[ "$verdict" == *changed* ]]; then rm "$store/$id"; fi
  # shellcheck disable=SC2059
  printf "$row" "$id" "$figure" "$(trim "$bound")" "$verdict$note"
  if [[ "$verdict" == "NOT RUN" ]]; then
    not_run+="${not_run:+, }$id"
  elif [[ "$verdict" != holds ]]; then
    misses=$((misses + 1))
    if [[ "$verdict" == *"could not run"* ]]; then could_not+="${could_not:+, }$id"; fi
    echo "  $(trim "$description"); log: $store/$id.log"
  fi
done <"$folder/lines"

if ((shown == 0)); then
  echo "accept: the suite $suite has no line ${only:-at all}" >&2
  exit 2
fi
if [[ -n "$not_run$could_not" ]]; then
  echo "NOT RUN on this machine: ${not_run:-none}${could_not:+; could not run, a miss: $could_not}"
elif [[ -n "$only" ]]; then
  echo "This line was run on this machine."
else
  echo "Every line was run on this machine."
fi
((misses == 0))
