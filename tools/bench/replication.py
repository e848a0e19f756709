"""What it costs that each update has two copies: pushes with and without, and raw TCP.

A worker that only pushes (load_worker.h) sends the gradients of a model of equal tensors through
two real shards as fast as they acknowledge them. Clusters with `durability: none` and `replicated`
take turns with raw TCP in one run, once on loopback for each size of tensor, and once over links of
1 Gb/s. docs/performance.md says what is counted.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e.cluster import Cluster  # noqa: E402
from tests.e2e.namespaces_test import NamespaceCluster, run, why_not  # noqa: E402
from tools.bench.load_cluster import (  # noqa: E402
    JOB,
    WORKER,
    WORKER_BINARY,
    Loaded,
    best_tcp,
    positive,
    raw_tcp,
    take_turns,
)
from tools.bench.machine import cpu_name  # noqa: E402
from tools.bench.turns import ratio, summarize, table, words  # noqa: E402

NONE, REPLICATED, TCP = "none", "replicated", "raw TCP"
TENSORS_MIB = (4, 16)
LINK_RATE = "1gbit"


class LoopbackCluster(Loaded, Cluster):
    """On loopback."""

    def tcp_ends(self):
        """What comes before the command of the receiver, and the sender's; the address."""
        return [], [], "127.0.0.1"


class LinkCluster(Loaded, NamespaceCluster):
    """Each process behind a link of LINK_RATE in each direction, over TLS."""

    def _add_host(self, name, role):
        if name in self.addresses:
            return
        super()._add_host(name, role)
        for space, port in ((name, "eth0"), ("sw", self._port(name))):
            run(
                "tc",
                "-n",
                self._namespace(space),
                "qdisc",
                "add",
                "dev",
                port,
                "root",
                "tbf",
                "rate",
                LINK_RATE,
                "burst",
                "256kb",
                "latency",
                "20ms",
            )

    def tcp_ends(self):
        return (
            self.inside("shard-0", []),
            self.inside(WORKER, []),
            self.addresses["shard-0"],
        )


def copies(cluster):
    """Who has which copy; the same again: nobody lost one in between."""
    views = cluster.describe_all(JOB)["views"]
    return [(view["number"], view["primary"], view.get("backup")) for view in views]


def measure(kind, tensor_mib, rounds, seconds):
    """The summary of all contenders' turns."""
    with contextlib.ExitStack() as stack:
        flags = {"shards": 2, "workers": 1, "worker_binary": WORKER_BINARY}
        flags["worker_flags"] = ["--shared-memory=off"]  # both copies go over TCP
        clusters = {}
        for durability in (NONE, REPLICATED):
            clusters[durability] = stack.enter_context(kind(**flags))
            clusters[durability].begin(tensor_mib, durability=durability)
        clusters[REPLICATED].wait_whole(JOB)
        before = copies(clusters[REPLICATED])
        ends = clusters[NONE].tcp_ends()
        variant = best_tcp(ends, seconds / 2)
        for cluster in clusters.values():
            cluster.run("push", seconds / 2)  # warms up
        turns = {
            NONE: lambda: clusters[NONE].run("push", seconds),
            REPLICATED: lambda: clusters[REPLICATED].run("push", seconds),
            TCP: lambda: raw_tcp(ends, variant, seconds),
        }
        found = take_turns(turns, rounds)
        if copies(clusters[REPLICATED]) != before:
            raise RuntimeError("a backup was given up: some pushes had one copy only")
    return {
        **summarize(found),
        "rate_ratio": ratio(found, "rate", REPLICATED, NONE),
        "cost_ratio": ratio(found, "cost", REPLICATED, NONE),
        "of_tcp": ratio(found, "rate", NONE, TCP),
    }


def report(where, tensor_mib, summary):
    print("\n".join(table(summary)))
    print(
        f"replication over {where}, tensors of {tensor_mib} MiB: replicated / none "
        f"{words(summary['rate_ratio'])}, CPU seconds per GB {words(summary['cost_ratio'])} times; "
        f"none / raw TCP {words(summary['of_tcp'])}; medians of {summary['rounds']} rounds "
        f"(least to greatest); {cpu_name()}\n",
        flush=True,
    )


def no_links():
    """Why links cannot be measured here; empty: they can."""
    reason = why_not()
    if not reason and shutil.which("tc") is None:
        reason = "there is no tc (tools/setup.sh --tests)"
    return reason


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, choices=range(1, 1000), metavar="N", default=7)
    parser.add_argument(
        "--seconds", type=positive, default=2, help="of a turn; over links twice that"
    )
    parser.add_argument(
        "--tensor-mib",
        type=int,
        choices=TENSORS_MIB,
        action="append",
        help="of a tensor, on loopback; default: all; over links the smallest",
    )
    parser.add_argument("--json", type=Path, help="a file for the figures")
    args = parser.parse_args()
    sizes = args.tensor_mib or TENSORS_MIB
    reason = no_links()
    if reason:
        print(f"NOT MEASURED over links of {LINK_RATE}: {reason}", flush=True)
    figures = {"cpu": cpu_name(), "cores": os.cpu_count(), "loopback": {}, "links": {}}
    for tensor_mib in sizes:
        summary = measure(LoopbackCluster, tensor_mib, args.rounds, args.seconds)
        report("loopback", tensor_mib, summary)
        figures["loopback"][tensor_mib] = summary
    if not reason:
        summary = measure(LinkCluster, min(sizes), args.rounds, 2 * args.seconds)
        report(f"links of {LINK_RATE}", min(sizes), summary)
        figures["links"][min(sizes)] = summary
    if args.json:
        args.json.write_text(json.dumps(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
