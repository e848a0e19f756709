"""SSP(2) and SSP(4) against BSP at equal samples: an MLP on MNIST and a small GPT.

    equal_samples.py [--seeds N] [--gpt-steps N] [--epochs N]

Needs STARLING_DATA with mnist/ and tinyshakespeare/. 4 workers, three seeds each. Prints a table of
the means over the seeds, then `figure: ...`; exit status 1 unless on MNIST the accuracy is within
0.3 points of BSP's, and for the GPT the validation loss is within 1 %, above or below.
"""

import argparse
import statistics
import sys

from tests.e2e.cluster import Cluster
from tests.e2e.trained import train

WORKERS = 4
POLICIES = {"bsp": "{bsp: {}}", "ssp2": "{ssp: {staleness: 2}}", "ssp4": "{ssp: {staleness: 4}}"}
POINTS = 0.3
PERCENT = 1.0
MNIST = {
    "model": "{builtin: mlp, hidden: [256, 128]}",
    "optimizer": "{sgd: {learningRate: {cosine: {peak: 0.1, warmupSteps: 200}}}}",
}
# Momentum 0 and a small rate: docs/consistency.md explains why.
SMALL_GPT = {
    "model.depth": 2,
    "model.width": 64,
    "model.heads": 4,
    "data.train.text.context": 32,
    "data.test.text.context": 32,
    "data.train.text.stride": 16,
    "batch.global": 32,
    "optimizer": "{adamw: {learningRate: {cosine: {peak: 0.00005, warmupSteps: 200}}, beta1: 0}}",
}


def run(cluster, task, policy, seed, options):
    settings = {
        "seed": seed,
        "consistency": POLICIES[policy],
        "workers.min": WORKERS,
        "workers.max": WORKERS,
    }
    if task == "mnist":
        settings |= {**MNIST, "stop.epochs": options.epochs, "evaluate.everyEpochs": options.epochs}
        return train(cluster, "mnist_cnn.yaml", f"mnist-{policy}-{seed}", settings).accuracy
    settings |= {**SMALL_GPT, "stop.steps": options.gpt_steps, "evaluate.everyEpochs": 1000}
    return train(cluster, "shakespeare_gpt.yaml", f"gpt-{policy}-{seed}", settings).test_loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--gpt-steps", type=int, default=2500)
    options = parser.parse_args()
    means, rows = {}, []
    with Cluster(shards=2, workers=WORKERS, worker_flags=["--lanes", "1"]) as cluster:
        for task in ("mnist", "gpt"):
            for policy in POLICIES:
                values = [
                    run(cluster, task, policy, seed, options)
                    for seed in range(1, options.seeds + 1)
                ]
                means[task, policy] = statistics.mean(values)
                rows.append((task, policy, means[task, policy], min(values), max(values)))
    print(f"{'task':6} {'policy':6} {'mean':>8} {'least':>8} {'most':>8}")
    for task, policy, mean, least, most in rows:
        print(f"{task:6} {policy:6} {mean:8.4f} {least:8.4f} {most:8.4f}")
    points = {p: 100 * (means["mnist", p] - means["mnist", "bsp"]) for p in ("ssp2", "ssp4")}
    percent = {p: 100 * (means["gpt", p] / means["gpt", "bsp"] - 1) for p in ("ssp2", "ssp4")}
    print(
        f"figure: against BSP: MNIST SSP(2) {points['ssp2']:+.2f}, SSP(4) {points['ssp4']:+.2f} "
        f"points; GPT SSP(2) {percent['ssp2']:+.2f} %, SSP(4) {percent['ssp4']:+.2f} %"
    )
    good = all(abs(difference) <= POINTS for difference in points.values())
    return 0 if good and all(abs(difference) <= PERCENT for difference in percent.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
