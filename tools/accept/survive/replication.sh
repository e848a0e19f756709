#!/usr/bin/env bash
# What two copies of each update cost a push. Without network namespaces the line could not run as
# it is meant: a miss.
set -euo pipefail
report=$(mktemp)
trap 'rm -f "$report"' EXIT
tools/bench.sh replication --json "$report" || {
  echo "figure: the bench failed: see above"
  exit 1
}
python3 - "$report" <<'PYTHON'
import json
import sys

LOOPBACK_MIN, COST_MAX, LINKS_MIN = 0.40, 2.3, 0.95

with open(sys.argv[1], encoding="utf-8") as file:
    figures = json.load(file)
held, said = True, []
for where, least in (("loopback", LOOPBACK_MIN), ("links", LINKS_MIN)):
    for tensor, found in figures[where].items():
        rate, cost = found["rate_ratio"]["median"], found["cost_ratio"]["median"]
        held &= rate >= least and (where == "links" or cost <= COST_MAX)
        said.append(f"{where}, {tensor} MiB: {rate:.2f} of one copy's, {cost:.2f} times the CPU")
if not figures["links"]:
    print(f"figure: {'; '.join(said)}; links: no network namespaces (root is needed)")
    sys.exit(77)
print(f"figure: {'; '.join(said)}")
sys.exit(0 if held else 1)
PYTHON
