#!/usr/bin/env bash
# Benches: each measures its own limit in the same run and prints the ratio.
#
#   tools/bench.sh overhead [--tls] [--rounds N] [--seconds S] [--lanes N]
#       1 worker + 2 shards against the same worker with a local update; --tls: also the cost of TLS
#   tools/bench.sh dataplane [--rounds N] [--seconds S] [--tensor-mib 1|4|16|64] [--json FILE]
#       pushes and pulls through a shard on loopback, against raw TCP and gRPC with nothing on top
#   tools/bench.sh replication [--rounds N] [--seconds S] [--tensor-mib 4|16] [--json FILE]
#       pushes with two copies of each update against pushes with one, and raw TCP: on loopback and,
#       as root, over links of 1 Gb/s
#   tools/bench.sh data [--rounds N] [--seconds S]
#       MNIST batches against memcpy; tar and JPEG against libturbojpeg alone; augmentation apart
#   tools/bench.sh compute [--precision fp32|bf16] [--rounds N] [--seconds S] [--threads N]
#       training lenet, resnet18 and a GPT on the CPU, against PyTorch (tools/setup.sh --peers) and
#       the matrix products that this machine reaches
#
# STARLING_DATA is the folder with the datasets, which compute, dataplane and replication do not
# need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

bench=${1:-}
[[ "$bench" =~ ^(overhead|dataplane|replication|data|compute)$ ]] || usage
shift
if [[ "$bench" == compute ]]; then
  bazel build --ui_event_filters=-info,-debug //tools/bench:compute_bench >&2
  exec python3 tools/bench/compute.py "$@"
fi
if [[ "$bench" == data ]]; then
  bazel build --ui_event_filters=-info,-debug //tools/bench:data_bench >&2
  exec bazel-bin/tools/bench/data_bench "$@"
fi
bazel build --ui_event_filters=-info,-debug //tools/bench/... //tools/cli:starling \
  //worker:starling-worker \
  //server/shard:starling-ps //server/coordinator:starling-coordinator >&2
exec python3 "tools/bench/$bench.py" "$@"
