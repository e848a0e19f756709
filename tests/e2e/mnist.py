"""examples/mnist_cnn.yaml on a real cluster of 2 shards and 2 workers, under each policy.

    mnist.py [--epochs N] [--seeds N] [--policies ssp,bsp,async]

Needs STARLING_DATA with mnist/. SSP(2) with three seeds, BSP and async with one each; prints each
run's test accuracy and throughput, then `figure: ...`. Exit status 1 unless the median of SSP(2)'s
is at least 0.990 and each other's at least 0.988.
"""

import argparse
import re
import statistics
import sys
import time

from tests.e2e.cluster import ROOT, Cluster

BOUNDS = {"ssp": 0.990, "bsp": 0.988, "async": 0.988}
SETTINGS = {
    "ssp": "consistency.ssp.staleness=2",
    "bsp": "consistency.bsp={}",
    "async": "consistency.async={}",
}


def submit(cluster, name, *settings):
    """Submits examples/mnist_cnn.yaml with these values of --set."""
    settings = [f"metadata.name={name}", *settings]
    flags = [word for setting in settings for word in ("--set", setting)]
    result = cluster.cli("submit", "-f", str(ROOT / "examples/mnist_cnn.yaml"), *flags)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)


def train(cluster, policy, seed, epochs):
    """Test accuracy after the last epoch."""
    name = f"{policy}-{seed}"
    begin = time.monotonic()
    submit(
        cluster, name, f"seed={seed}", SETTINGS[policy], "workers.min=2", f"stop.epochs={epochs}"
    )
    result = cluster.cli("wait", name, "--timeout", "60m", timeout=3700)
    seconds = time.monotonic() - begin
    if result.returncode != 0:
        raise RuntimeError(f"{name}: exit {result.returncode}: {result.stderr}")
    accuracy = float(re.search(r"^test_accuracy=(\S+)$", result.stdout, re.M).group(1))
    status = cluster.describe(name)
    by_epoch = " ".join(
        f"{epoch['testAccuracy']:.4f}" for epoch in status["epochsDone"] if epoch.get("evaluated")
    )
    print(
        f"{policy} seed {seed}: test accuracy {accuracy:.4f} (by epoch: {by_epoch}), {seconds:.0f} "
        f"s in all, {60000 * epochs / seconds:.0f} samples/s",
        flush=True,
    )
    return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policies", default="ssp,bsp,async")
    options = parser.parse_args()
    figures, good = [], True
    with Cluster(shards=2, workers=2, worker_flags=["--lanes", "1"]) as cluster:
        for policy in options.policies.split(","):
            seeds = range(1, 1 + (options.seeds if policy == "ssp" else 1))
            found = [train(cluster, policy, seed, options.epochs) for seed in seeds]
            figures.append(f"{policy} {statistics.median(found):.4f}")
            good = good and statistics.median(found) >= BOUNDS[policy]
    print(f"figure: {', '.join(figures)} after {options.epochs} epochs")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
