#!/usr/bin/env bash
# Tensors between a worker and a shard, of what TCP alone moves.
set -euo pipefail
report=$(mktemp)
trap 'rm -f "$report"' EXIT
tools/bench.sh dataplane --json "$report" || {
  echo "figure: the bench failed: see above"
  exit 1
}
python3 - "$report" <<'PYTHON'
import json
import sys

LEAST = {"skipped": 0.80, "push": 0.60, "pull": 0.80, "both": 0.80}
COST_MAX, LARGER_LEAST = 1.5, 0.95

with open(sys.argv[1], encoding="utf-8") as file:
    tensors = json.load(file)["tensors"]
of_tcp = {who: found["median"] for who, found in tensors["4"]["of_tcp"].items()}
cost = tensors["4"]["cost_of_tcp"]["skipped"]["median"]
held = cost <= COST_MAX and all(of_tcp[who] >= least for who, least in LEAST.items())
said = [f"{who} {of_tcp[who]:.2f}" for who in (*LEAST, "raw gRPC")]
said.append(f"CPU of skipped {cost:.2f}")
for tensor in ("16", "64"):
    larger = tensors[tensor]["of_tcp"]["skipped"]["median"] / of_tcp["skipped"]
    held &= larger >= LARGER_LEAST
    said.append(f"{tensor} MiB {larger:.2f} of 4 MiB")
print(f"figure: of raw TCP: {'; '.join(said)}")
sys.exit(0 if held else 1)
PYTHON
