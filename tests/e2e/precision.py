"""examples/mnist_cnn.yaml in two-byte floats against fp32: the same jobs, the same samples in
order.

    precision.py [--epochs N] [--seeds N]

Needs STARLING_DATA with mnist/. BSP on 2 shards and 2 workers, so that two runs of one seed differ
in precision only. Prints each run, then `figure: ...`; exit status 1 unless the mean test
accuracies over the seeds of bf16 and of fp16 are within 0.2 points of fp32's, above or below.
"""

import argparse
import statistics
import sys

from tests.e2e.cluster import Cluster
from tests.e2e.trained import train

POINTS = 0.2


def accuracies(cluster, precision, options):
    settings = {
        "precision": precision,
        "consistency": "{bsp: {}}",
        "workers.min": 2,
        "stop.epochs": options.epochs,
    }
    results = [
        train(cluster, "mnist_cnn.yaml", f"{precision}-{seed}", {**settings, "seed": seed})
        for seed in range(1, options.seeds + 1)
    ]
    for result in results:
        if precision == "fp16":
            print(
                f"{result.name}: loss scale {result.status['lossScale']:.0f} at the end, "
                f"{result.status.get('skippedSteps', 0)} steps skipped",
                flush=True,
            )
    return [result.accuracy for result in results]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with Cluster(shards=2, workers=2, worker_flags=["--lanes", "1"]) as cluster:
        means = {
            precision: statistics.mean(accuracies(cluster, precision, options))
            for precision in ("fp32", "bf16", "fp16")
        }
    points = {precision: 100 * (mean - means["fp32"]) for precision, mean in means.items()}
    print(
        f"figure: bf16 {points['bf16']:+.2f} and fp16 {points['fp16']:+.2f} points against fp32's "
        f"{means['fp32']:.4f}, means of {options.seeds} seeds after {options.epochs} epochs"
    )
    return 0 if max(abs(difference) for difference in points.values()) <= POINTS else 1


if __name__ == "__main__":
    sys.exit(main())
