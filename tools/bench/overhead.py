"""The cost of the parameter server: 1 worker + 2 shards against the same worker with a local
update.

lenet (1,199,882 parameters), MNIST, batch 128, SSP(0), the same number of threads; docs/benchmarks.
The two take turns in one run, so that drift of the machine affects both. With --tls a cluster over
mutual TLS takes its turn, too.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e.cluster import Cluster, binary, job_file, wait_until  # noqa: E402
from tools.bench.machine import cpu_name  # noqa: E402

BATCH = 128


def mnist_job(name, durability="none"):
    data = Path(os.environ["STARLING_DATA"]) / "mnist"
    return job_file(
        name,
        {"builtin": "lenet"},
        {
            "train": {
                "idx": {
                    "images": str(data / "train-images-idx3-ubyte.gz"),
                    "labels": str(data / "train-labels-idx1-ubyte.gz"),
                }
            },
            "normalize": {"mean": [0.1307], "std": [0.3081]},
        },
        batch={"global": BATCH, "microBatches": 4},
        optimizer={"momentum": {"learningRate": 0.01}},
        consistency={"ssp": {"staleness": 0}},
        workers={"min": 1, "max": 1},
        stop={"epochs": 100},
        durability=durability,
    )


def cluster_rate(cluster, name, seconds, durability):
    """Samples per second of a job between its 10th step and `seconds` later."""
    cluster.submit(mnist_job(name, durability))
    if durability == "replicated":

        def is_whole():
            status = cluster.describe(name)
            return status.get("partitionsWhole", 0) == status.get("partitions")

        wait_until(is_whole, 60, "both copies of all partitions")
    cluster.wait_progress(name, step=10)
    begin, first = time.monotonic(), int(cluster.describe(name)["step"])
    time.sleep(seconds)
    end, last = time.monotonic(), cluster.describe(name)
    cluster.cli("cancel", name)
    cluster.wait(name)
    cluster.cli("delete", name)
    wait_until(
        lambda: all(w["state"] == "idle" for w in cluster.get("workers")), 30, "an idle worker"
    )
    return (int(last["step"]) - first) * BATCH / (end - begin), float(last.get("hiddenShare", 0))


def local_rate(job, lanes, steps):
    result = subprocess.run(
        [binary("tools/bench/local_trainer"), job, str(lanes), str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(re.search(r"samples_per_second=([0-9.]+)", result.stdout).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--lanes", type=int, default=os.cpu_count())
    parser.add_argument("--durability", choices=["none", "replicated"], default="none")
    parser.add_argument("--tls", action="store_true", help="measure a cluster over mutual TLS, too")
    args = parser.parse_args()
    if "STARLING_DATA" not in os.environ:
        print("SKIPPED: STARLING_DATA is not set: the bench trains on MNIST")
        return 77
    ratios, hidden, prices = [], [], []
    flags = {"shards": 2, "workers": 1, "worker_flags": ["--lanes", str(args.lanes)]}
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".json"))
        cluster = stack.enter_context(Cluster(**flags))
        protected = stack.enter_context(Cluster(**flags, tls=True)) if args.tls else None
        json.dump(mnist_job("local"), job)
        job.flush()
        steps = max(20, int(local_rate(job.name, args.lanes, 20) * args.seconds / BATCH))
        print(
            f"{'round':>5} {'cluster':>9} {'local':>9} {'ratio':>6}   samples/s, {args.lanes} lanes"
        )
        for i in range(args.rounds):
            ours, share = cluster_rate(
                cluster, f"overhead-{i}", args.seconds, args.durability
            )
            local = local_rate(job.name, args.lanes, steps)
            ratios.append(ours / local)
            hidden.append(share)
            line = f"{i:>5} {ours:>9.0f} {local:>9.0f} {ours / local:>6.3f}"
            if protected:
                over_tls, _ = cluster_rate(
                    protected, f"overhead-{i}", args.seconds, args.durability
                )
                prices.append(over_tls / ours)
                line += f"   over TLS {prices[-1] * ours:.0f}, {prices[-1]:.3f} of plain"
            print(line, flush=True)
    print(
        f"overhead ratio: median {statistics.median(ratios):.3f} "
        f"(min {min(ratios):.3f}, max {max(ratios):.3f}); hidden share "
        f"{statistics.median(hidden):.2f}; durability {args.durability}; limit: the local trainer "
        f"of the same run; {cpu_name()}"
    )
    if prices:
        print(
            f"tls ratio: median {statistics.median(prices):.3f} of the plain cluster's samples/s "
            f"(min {min(prices):.3f}, max {max(prices):.3f}); limit: the plain cluster of the same "
            "run"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
