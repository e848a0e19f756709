"""Training with stale updates, with and without a guard.

    guard.py [--seeds N]

Needs STARLING_DATA with mnist/. Four workers train an MLP on MNIST under async with momentum 0.9,
while --inject-push-delay delays each push by 20 ms: an update is applied some seven updates after
its values were pulled. The rate grows through all five epochs; BSP tolerates that, stale updates do
not, and training diverges. The same job with `guard: {lossFactor: 1.5}` is tightened, and learns.
Prints each run's accuracy and policies, then `figure: ...`; exit status 1 unless every accuracy is
below 0.50 without the guard and at least 0.95 with it.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

from tests.e2e.cluster import Cluster, job_file

DELAY = "0.02s"
WORKERS = 4
EPOCHS = 5
LEARNING_RATE = {"constant": 0.06, "warmupSteps": 4000}
GUARD = {"lossFactor": 1.5}
MOST_WITHOUT = 0.50
LEAST_WITH = 0.95


def mnist(part):
    folder = Path(os.environ["STARLING_DATA"]) / "mnist"
    return {
        "idx": {
            "images": str(folder / f"{part}-images-idx3-ubyte.gz"),
            "labels": str(folder / f"{part}-labels-idx1-ubyte.gz"),
        }
    }


def train(cluster, seed, guarded):
    """Test accuracy after the last epoch; 0 if the job failed, for example by a NaN loss."""
    name = f"{'guarded' if guarded else 'alone'}-{seed}"
    data = {
        "train": mnist("train"),
        "test": mnist("t10k"),
        "normalize": {"mean": [0.1307], "std": [0.3081]},
    }
    begin = time.monotonic()
    cluster.submit(
        job_file(
            name,
            {"builtin": "mlp", "hidden": [128, 64]},
            data,
            optimizer={"momentum": {"momentum": 0.9, "learningRate": LEARNING_RATE}},
            batch={"global": 128, "microBatches": 4},
            consistency={"async": {}, "guard": GUARD} if guarded else {"async": {}},
            workers={"min": WORKERS, "max": WORKERS},
            evaluate={"everyEpochs": 1},
            stop={"epochs": EPOCHS},
            seed=seed,
        )
    )
    result = cluster.cli("wait", name, "--timeout", "10m", timeout=630)
    found = re.search(r"^test_accuracy=(\S+)$", result.stdout, re.M)
    accuracy = float(found.group(1)) if result.returncode == 0 and found else 0.0
    status = cluster.describe(name)
    policies = [
        f"{p['policy']['kind'].lower()} from step {p.get('step', 0)}" for p in status["policies"]
    ]
    print(
        f"{name}: {status['state']}, test accuracy {accuracy:.4f}, {', '.join(policies)}, "
        f"{time.monotonic() - begin:.0f} s",
        flush=True,
    )
    if guarded:
        print(
            "\n".join(
                line for line in cluster.cli("logs", name).stdout.splitlines() if "guard" in line
            ),
            flush=True,
        )
    return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    alone, guarded = [], []
    flags = ["--lanes", "1", "--inject-push-delay", DELAY]
    with Cluster(shards=1, workers=WORKERS, worker_flags=flags) as cluster:
        for seed in range(1, 1 + options.seeds):
            alone.append(train(cluster, seed, guarded=False))
            guarded.append(train(cluster, seed, guarded=True))
    print(
        f"figure: without the guard {', '.join(f'{a:.4f}' for a in alone)}; "
        f"with it {', '.join(f'{a:.4f}' for a in guarded)}"
    )
    return 0 if max(alone) < MOST_WITHOUT and min(guarded) >= LEAST_WITH else 1


if __name__ == "__main__":
    sys.exit(main())
