#!/usr/bin/env bash
# Ten minutes of chaos with enough faults. Without MNIST or network namespaces the line could not
# run as it is meant: a miss.
set -euo pipefail
if [[ ! -d "${STARLING_DATA:-}/mnist" ]]; then
  echo "figure: no MNIST: set STARLING_DATA to the folder that has mnist/"
  exit 77
fi
report=$(mktemp)
trap 'rm -f "$report"' EXIT
status=0
tools/chaos.sh --minutes 10 --seed 1 --json "$report" || status=$?
python3 - "$report" <<'PYTHON'
import json
import sys

FAULTS_MIN, SHARD_KILLS_MIN = 100, 40

with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
if not text:
    sys.exit("figure: the run wrote no report")
report = json.loads(text)
if report["not_tested"]:
    print(f"figure: not tested: {'; '.join(report['not_tested'])}")
    sys.exit(77)
faults = report["faults"]
kills = [fault for fault in faults if (fault["role"], fault["kind"]) == ("shard", "kill")]
roles = {fault["role"] for fault in faults}
broken = [promise for promise in report["promises"] if not promise["held"]]
said = "; ".join(
    f"{'' if promise['held'] else 'BROKEN: '}{promise['promise']}: {promise['found']}"
    for promise in report["promises"]
)
print(
    f"figure: {len(faults)} faults of {len(roles)} roles, {len(kills)} kills of shards; {said}"
)
enough = len(faults) >= FAULTS_MIN and len(kills) >= SHARD_KILLS_MIN and len(roles) == 3
enough &= any("kill -9 of a shard" in promise["promise"] for promise in report["promises"])
sys.exit(0 if enough and not broken else 1)
PYTHON
((status == 0))
