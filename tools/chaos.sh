#!/usr/bin/env bash
# Chaos: random faults of all roles on real processes while jobs train, and what they cost.
#
#   tools/chaos.sh [--minutes M] [--seed S] [--json FILE]
#
# One coordinator, three shards, three workers. Kills, pauses, and as root cuts off the network.
# A shard's next fault waits until everything has two copies again. Counters prove that no update
# is lost or applied twice; MNIST ($STARLING_DATA/mnist) shows that the model is as good as without.
# At the end both copies of a partition are killed at once, which is expected to be one rollback.
# The last jobs train to their end, which takes some minutes more than M (10).
# Exit status: 0 all promises held; 1 not; 130 interrupted (nothing is left running).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
(
  cd "$root"
  bazel build --ui_event_filters=-info,-debug //tests/e2e:binaries //tests/e2e:spans >&2
)
export PYTHONPATH=$root PYTHONDONTWRITEBYTECODE=1
exec python3 -m tests.e2e.chaos "$@"
