"""What it costs that each update has two copies: pushes with and without, and raw TCP.

A worker that only pushes (pusher.h) sends the gradients of a model of equal tensors through two
real shards as fast as they acknowledge them. Clusters with `durability: none` and `replicated` take
turns with raw TCP in one run, once on loopback for each size of tensor, and once over links of
1 Gb/s. docs/performance.md says what is counted.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e.cluster import Cluster, binary, job_file  # noqa: E402
from tests.e2e.namespaces_test import NamespaceCluster, run, why_not  # noqa: E402
from tools.bench.machine import cpu_name  # noqa: E402
from tools.bench.replication_report import (  # noqa: E402
    NONE,
    REPLICATED,
    TCP,
    Turn,
    summarize,
    table,
    words,
)

WORKER = "worker-0"
JOB = "pushed"
MIB = 1 << 20
MODEL_BYTES = 64 * MIB  # and as much for the momentum
SIDES = {4: 1024, 16: 2048}  # MiB of a tensor -> its rows and columns
LINK_RATE = "1gbit"
SETTLE_SECONDS = 0.2  # a backup applies after the acknowledgement
ANSWER_SECONDS = 120
CHOOSING_ROUNDS = 3
TICKS = os.sysconf("SC_CLK_TCK")


class Pushed:
    """A cluster whose worker is push_load: Pushed goes before the class of the cluster."""

    def _spawn(self, name, command):
        if name != WORKER:
            super()._spawn(name, command)
            return
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.directory,
            )

    def begin(self, tensor_mib, durability):
        """Submits the job and waits until pushes can begin."""
        side = SIDES[tensor_mib]
        model = {
            "builtin": "mlp",
            "hidden": [side] * (MODEL_BYTES // (tensor_mib * MIB)),
        }
        self.submit(
            job_file(
                JOB,
                model,
                {"train": {"csv": {"path": "/made/by/the/worker"}}},
                batch={"global": 1, "microBatches": 1},
                optimizer={"momentum": {"learningRate": 1e-6}},
                consistency={"async": {}},
                durability=durability,
            )
        )
        self._answer()
        if durability == REPLICATED:
            self.wait_whole(JOB)

    def copies(self):
        """Who has which copy; the same again: nobody lost one in between."""
        views = self.describe_all(JOB)["views"]
        return [(view["number"], view["primary"], view.get("backup")) for view in views]

    def _answer(self):
        process = self.processes[WORKER]
        late = threading.Timer(ANSWER_SECONDS, process.kill)
        late.start()
        line = process.stdout.readline()
        late.cancel()
        if not line:
            raise RuntimeError(f"push_load did not answer: {self.log(WORKER)[-2000:]}")
        return json.loads(line)

    def _cpu_seconds(self):
        """Of all daemons and the worker."""
        total = 0
        for process in self.processes.values():
            stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
            user, system = stat.rsplit(")", 1)[1].split()[11:13]
            total += int(user) + int(system)
        return total / TICKS

    def push(self, seconds):
        before = self._cpu_seconds()
        worker = self.processes[WORKER]
        worker.stdin.write(f"{seconds}\n")
        worker.stdin.flush()
        answer = self._answer()
        time.sleep(SETTLE_SECONDS)
        return Turn(answer["bytes"], answer["seconds"], self._cpu_seconds() - before)


class LoopbackCluster(Pushed, Cluster):
    """On loopback."""

    def tcp_ends(self):
        """What comes before the command of the receiver, and the sender's; the address."""
        return [], [], "127.0.0.1"


class LinkCluster(Pushed, NamespaceCluster):
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


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process):
    """(the rest of its output, its CPU seconds)"""
    output = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{process.args} ended with status {process.returncode}")
    return output, usage.ru_utime + usage.ru_stime


def raw_tcp(ends, variant, seconds):
    """One turn over one connection."""
    at_receiver, at_sender, address = ends
    program = binary("tools/bench/raw_tcp")
    receiver = start([*at_receiver, program, "receive", address, *map(str, variant)])
    try:
        port = receiver.stdout.readline().strip()
        sender = start([*at_sender, program, "send", address, port, str(seconds)])
        _, sending = finish(sender)
        output, receiving = finish(receiver)
    finally:
        if receiver.returncode is None:
            receiver.kill()
            receiver.wait()
    answer = json.loads(output)
    return Turn(answer["bytes"], answer["seconds"], sending + receiving)


def best_tcp(ends, seconds):
    """The fastest way to receive: (where to, the receive buffer's bytes)."""
    variants = [(to, buffer) for to in ("place", "stream") for buffer in (0, 512 << 10)]
    rates = {variant: [] for variant in variants}
    for _ in range(CHOOSING_ROUNDS):
        for variant in variants:
            rates[variant].append(raw_tcp(ends, variant, seconds).rate)
    medians = {variant: statistics.median(found) for variant, found in rates.items()}
    print(
        "raw TCP, GB/s: "
        + ", ".join(f"{to} {buffer}: {medians[to, buffer]:.2f}" for to, buffer in variants),
        flush=True,
    )
    return max(medians, key=medians.get)


def measure(kind, tensor_mib, rounds, seconds):
    """Turns of all contenders, by round."""
    with contextlib.ExitStack() as stack:
        flags = {"shards": 2, "workers": 1, "worker_binary": "tools/bench/push_load"}
        clusters = {}
        for durability in (NONE, REPLICATED):
            clusters[durability] = stack.enter_context(kind(**flags))
            clusters[durability].begin(tensor_mib, durability)
        copies = clusters[REPLICATED].copies()
        ends = clusters[NONE].tcp_ends()
        variant = best_tcp(ends, seconds / 2)
        for cluster in clusters.values():
            cluster.push(seconds / 2)  # warms up
        turns = {
            NONE: lambda: clusters[NONE].push(seconds),
            REPLICATED: lambda: clusters[REPLICATED].push(seconds),
            TCP: lambda: raw_tcp(ends, variant, seconds),
        }
        found = []
        print(f"{'round':>5} {'none':>8} {'replicated':>10} {'raw TCP':>8}   GB/s", flush=True)
        for i in range(rounds):
            order = list(turns) if i % 2 == 0 else list(reversed(turns))
            found.append({who: turns[who]() for who in order})
            rates = {who: turn.rate for who, turn in found[-1].items()}
            print(
                f"{i:>5} {rates[NONE]:>8.3f} {rates[REPLICATED]:>10.3f} {rates[TCP]:>8.3f}",
                flush=True,
            )
        if clusters[REPLICATED].copies() != copies:
            raise RuntimeError("a backup was given up: some pushes had one copy only")
    return found


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


def positive(text):
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, choices=range(1, 1000), metavar="N", default=7)
    parser.add_argument(
        "--seconds", type=positive, default=2, help="of a turn; over links twice that"
    )
    parser.add_argument(
        "--tensor-mib",
        type=int,
        choices=sorted(SIDES),
        action="append",
        help="of a tensor, on loopback; default: all; over links the smallest",
    )
    parser.add_argument("--json", type=Path, help="a file for the figures")
    args = parser.parse_args()
    sizes = args.tensor_mib or sorted(SIDES)
    reason = no_links()
    if reason:
        print(f"NOT MEASURED over links of {LINK_RATE}: {reason}", flush=True)
    figures = {"cpu": cpu_name(), "cores": os.cpu_count(), "loopback": {}, "links": {}}
    for tensor_mib in sizes:
        summary = summarize(measure(LoopbackCluster, tensor_mib, args.rounds, args.seconds))
        report("loopback", tensor_mib, summary)
        figures["loopback"][tensor_mib] = summary
    if not reason:
        rounds = measure(LinkCluster, min(sizes), args.rounds, 2 * args.seconds)
        summary = summarize(rounds)
        report(f"links of {LINK_RATE}", min(sizes), summary)
        figures["links"][min(sizes)] = summary
    if args.json:
        args.json.write_text(json.dumps(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
