"""How fast tensors move between a worker and a shard, over TCP and through shared memory, beside
raw TCP, gRPC and a ring in shared memory with nothing on top.

A worker that computes nothing (load_worker.h) pushes the gradients of a model of equal tensors to
one real shard and pulls their values, as fast as the shard answers, with all checks of any job.
Contenders take turns. docs/performance.md says what is counted.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e.cluster import Cluster  # noqa: E402
from tools.bench.load_cluster import (  # noqa: E402
    SIDES,
    WORKER_BINARY,
    Loaded,
    best_tcp,
    positive,
    raw_grpc,
    raw_ring,
    raw_tcp,
    raw_tcp_both,
    take_turns,
)
from tools.bench.machine import cpu_name  # noqa: E402
from tools.bench.turns import ratio, summarize, table, words  # noqa: E402

TRAFFIC = ("skipped", "push", "pull", "both")
SHARED = {traffic: f"shm {traffic}" for traffic in TRAFFIC}  # through shared memory
TCP, TCP_BOTH, GRPC, RING = "raw TCP", "raw both", "raw gRPC", "raw ring"
ENDS = [], [], "127.0.0.1"
DURABILITY = "none"  # of the job: one copy
OFF = ["--shared-memory=off"]


class LoadedCluster(Loaded, Cluster):
    """On loopback."""

    def __init__(self, **flags):
        super().__init__(shards=1, workers=1, worker_binary=WORKER_BINARY, **flags)


def measure(tensor_mib, rounds, seconds):
    """The summary of all contenders' turns, and the ratios to their limits."""
    with LoadedCluster(flags_of={"shard-0": OFF}) as over_tcp, LoadedCluster() as shared:
        for cluster in (over_tcp, shared):
            # With fp16, a push's update can be skipped; what moves is fp32.
            cluster.begin(tensor_mib, durability=DURABILITY, precision="fp16")
        variant = best_tcp(ENDS, seconds / 2)
        both_ways = best_tcp(ENDS, seconds / 2, raw_tcp_both)
        turns = {traffic: lambda t=traffic: over_tcp.run(t, seconds) for traffic in TRAFFIC}
        turns |= {who: lambda t=traffic: shared.run(t, seconds) for traffic, who in SHARED.items()}
        turns[TCP] = lambda: raw_tcp(ENDS, variant, seconds)
        turns[TCP_BOTH] = lambda: raw_tcp_both(ENDS, both_ways, seconds)
        turns[GRPC] = lambda: raw_grpc(ENDS, seconds)
        turns[RING] = lambda: raw_ring(seconds)
        for traffic in TRAFFIC:  # warms up
            over_tcp.run(traffic, seconds / 2)
            shared.run(traffic, seconds / 2)
        found = take_turns(turns, rounds)
    limits = {who: TCP_BOTH if who == "both" else TCP for who in (*TRAFFIC, GRPC)}
    own = {who: traffic for traffic, who in SHARED.items()}
    return {
        **summarize(found),
        "of_tcp": {who: ratio(found, "rate", who, limit) for who, limit in limits.items()},
        "cost_of_tcp": {who: ratio(found, "cost", who, limit) for who, limit in limits.items()},
        "of_own_tcp": {who: ratio(found, "rate", who, other) for who, other in own.items()},
        "cost_of_own_tcp": {who: ratio(found, "cost", who, other) for who, other in own.items()},
        # One way, as the ring.
        "of_ring": {who: ratio(found, "rate", who, RING) for who in own if own[who] != "both"},
    }


def report(tensor_mib, summary):
    print("\n".join(table(summary)))
    of_limits = "; ".join(
        f"{who} {words(of)}, {words(summary['cost_of_tcp'][who])}"
        for who, of in summary["of_tcp"].items()
    )
    of_own = "; ".join(
        f"{who} {words(of)}, {words(summary['cost_of_own_tcp'][who])}"
        for who, of in summary["of_own_tcp"].items()
    )
    of_ring = "; ".join(f"{who} {words(of)}" for who, of in summary["of_ring"].items())
    print(
        f"dataplane, tensors of {tensor_mib} MiB, of raw TCP (GB/s; CPU seconds per GB): "
        f"{of_limits}\nshared memory, of our own TCP (the same): {of_own}\n"
        f"shared memory, of the ring (GB/s): {of_ring}\n"
        f"durability {DURABILITY}; medians of {summary['rounds']} rounds (least to greatest); "
        f"{cpu_name()}\n",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, choices=range(1, 1000), metavar="N", default=7)
    parser.add_argument("--seconds", type=positive, default=1.5, help="of a turn")
    parser.add_argument(
        "--tensor-mib",
        type=int,
        choices=sorted(SIDES),
        action="append",
        help="of a tensor; default: 4, 16 and 64",
    )
    parser.add_argument("--json", type=Path, help="a file for the figures")
    args = parser.parse_args()
    figures = {"cpu": cpu_name(), "cores": os.cpu_count(), "tensors": {}}
    for tensor_mib in args.tensor_mib or [4, 16, 64]:
        summary = measure(tensor_mib, args.rounds, args.seconds)
        report(tensor_mib, summary)
        figures["tensors"][tensor_mib] = summary
    if args.json:
        args.json.write_text(json.dumps(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
