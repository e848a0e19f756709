"""examples/cifar_resnet18.yaml: ResNet-18 on 10,000 images of CIFAR-10, through a cluster.

    cifar.py [--epochs N] [--workers N]      trains, evaluates on the full test set
    cifar.py --bitwise [--steps N]           the first steps in BSP: 2 workers against 1

Needs STARLING_DATA with cifar10/. Prints `figure: ...`; exit status 1 unless the accuracy is at
least 0.50 within 40 minutes, or the SHA-256 of both runs are equal.
"""

import argparse
import sys

from tests.e2e.cluster import Cluster
from tests.e2e.trained import digest, train

LEAST_ACCURACY = 0.50
MOST_SECONDS = 40 * 60


def accuracy(options):
    with Cluster(
        shards=1,
        workers=options.workers,
        worker_flags=["--lanes", str(max(1, 2 // options.workers))],
    ) as cluster:
        result = train(
            cluster,
            "cifar_resnet18.yaml",
            "cifar",
            {
                "stop.epochs": options.epochs,
                "evaluate.everyEpochs": options.epochs,
                "workers.min": options.workers,
                "workers.max": options.workers,
            },
            2 * MOST_SECONDS,
        )
    print(
        f"figure: accuracy {result.accuracy:.4f} after {options.epochs} epochs of 10,000 images, "
        f"{result.seconds / 60:.1f} minutes, {options.workers} workers"
    )
    return result.accuracy >= LEAST_ACCURACY and result.seconds <= MOST_SECONDS


def bitwise(options):
    digests = []
    for workers in (1, 2):
        with Cluster(
            shards=1, workers=workers, worker_flags=["--lanes", str(3 - workers)]
        ) as cluster:
            train(
                cluster,
                "cifar_resnet18.yaml",
                "first-steps",
                {
                    "stop.steps": options.steps,
                    "evaluate.everyEpochs": 1000,
                    "consistency": "{bsp: {}}",
                    "workers.min": workers,
                    "workers.max": workers,
                },
                MOST_SECONDS,
            )
            digests.append(digest(cluster, "first-steps"))
            print(f"{workers} workers: SHA-256 {digests[-1]}", flush=True)
    print(f"figure: {len(set(digests))} SHA-256 over 1 and 2 workers after {options.steps} steps")
    return len(set(digests)) == 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bitwise", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    return 0 if (bitwise if options.bitwise else accuracy)(options) else 1


if __name__ == "__main__":
    sys.exit(main())
