#!/usr/bin/env bash
# To be sourced in the repository's root by lines that judge a GPU. Without a GPU the script ends:
# NOT RUN. A GPU that cannot be used is a miss.
#
# $bundle is the bundle's folder: that of `tools/accept.sh gpu --bundle DIR`, so that a machine
# without Bazel and without a network can be judged; otherwise it is built. `part NAME...` runs
# parts of it and writes their report to $place/report.json; `report EXPRESSION` reads that, and
# $gpu is the GPU's name with the versions of its driver and libraries.
set -euo pipefail
# shellcheck source=tools/accept/has_gpu.sh
source tools/accept/has_gpu.sh
if ! command -v python3 >/dev/null; then
  echo "figure: there is a GPU, but no python3, which reads the bundle's reports"
  exit 77
fi
place=$(mktemp -d "${TMPDIR:-/tmp}/starling-gpu.XXXXXX")
trap 'rm -rf "$place"' EXIT
bundle=${STARLING_BUNDLE:-}
if [[ -z "$bundle" ]]; then
  bundle="$place/bundle"
  tools/gpu_bundle.sh "$bundle" >&2
fi

# part NAME...: shows its output; sets $part_status, and $part_seconds to its duration.
part() {
  local began=$SECONDS
  rm -f "$place/report.json"
  part_status=0
  # shellcheck disable=SC2034  # for scripts that source this
  "$bundle/run_gpu.sh" "$@" --json "$place/report.json" >"$place/output" 2>&1 || part_status=$?
  # shellcheck disable=SC2034  # for scripts that source this
  part_seconds=$((SECONDS - began))
  cat "$place/output"
  if [[ ! -s "$place/report.json" ]]; then
    echo "figure: $bundle/run_gpu.sh $* left no report: $(tail -n 1 "$place/output")"
    exit 1
  fi
}

# report EXPRESSION: a Python expression's value, where `report` is the report, and part(NAME) and
# figure(NAME, KEY) read it; a missing figure is "none".
report() {
  python3 - "$place/report.json" "$1" <<'PYTHON'
import json
import sys

report = json.load(open(sys.argv[1], encoding="utf-8"))


def part(name):
    found = [part for part in report["parts"] if part["name"] == name]
    return found[0] if found else {"verdict": "missing", "text": "", "figures": {}, "seconds": 0}


def figure(name, key):
    for part in report["parts"]:
        if name in part["figures"]:
            return part["figures"][name].get(key, "none")
    return "none"


print(eval(sys.argv[2]))
PYTHON
}

part check --on gpu
if [[ "$(report 'report["gpu"]["usable"]')" != True ]]; then
  echo "figure: there is a GPU, but: $(report 'report["gpu"]["name"]')"
  exit 77
fi
gpu=$(report 'part("check gpu")["text"]')
echo "GPU: $gpu"

at_least() {
  awk -v figure="${1:-none}" -v bound="$2" \
    'BEGIN { exit !(figure + 0 >= bound && figure != "none") }'
}

# need_torch: ends the script if there is no PyTorch to compare with.
need_torch() {
  if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "figure: no PyTorch beside the GPU:" \
      "there must be a python3 whose torch.cuda.is_available()"
    exit 77
  fi
}

# against_torch NET BOUND: compares bf16 training with PyTorch's in the same run; ends the script.
against_torch() {
  local name="$1-bf16" ratio
  need_torch
  part compute "$1" --on gpu # other precisions are not judged here
  ratio=$(report "figure('$name', 'ratio')")
  echo "figure: $ratio of PyTorch $(report "figure('$name', 'version')"):" \
    "$(report "figure('$name', 'ours')") of $(report "figure('$name', 'torch')") samples/s, on $gpu"
  at_least "$ratio" "$2"
  exit
}
