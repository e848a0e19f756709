"""Two concurrent jobs on one cluster: each one's parameters have the SHA-256 of its solo run, in
BSP.

    two_jobs.py [--epochs N]

Two different nets on made-up images, on 2 shards and 2 workers, one per job. Prints `figure: ...`;
exit status 1 unless both digests agree and both jobs were seen running at the same time.
"""

import argparse
import sys
import tempfile

from tests.e2e.bsp_matrix_test import LAYERS, write_idx
from tests.e2e.cluster import Cluster, job_file
from tests.e2e.trained import digest

JOBS = {
    "first": ({"layers": LAYERS}, {"adam": {"learningRate": 0.003}}, 1),
    "second": ({"builtin": "mlp", "hidden": [64, 32]}, {"momentum": {"learningRate": 0.05}}, 2),
}


def submit(cluster, name, data, epochs):
    model, optimizer, seed = JOBS[name]
    source = {"idx": {"images": data[0], "labels": data[1]}}
    cluster.submit(
        job_file(
            name,
            model,
            {"train": source},
            optimizer=optimizer,
            seed=seed,
            batch={"global": 64, "microBatches": 8},
            stop={"epochs": epochs},
        )
    )


def both_running(cluster):
    states = {job["name"]: job for job in cluster.get("jobs")}
    return all(
        states[name]["state"] == "RUNNING" and int(states[name]["step"]) > 0 for name in JOBS
    )


def solo(name, data, epochs):
    with Cluster(shards=2, workers=2) as cluster:
        submit(cluster, name, data, epochs)
        if cluster.wait(name) != 0:
            raise RuntimeError(str(cluster.describe(name)))
        return digest(cluster, name)


def together(data, epochs):
    """(digests, whether both jobs were seen running at the same time)."""
    with Cluster(shards=2, workers=2) as cluster:
        for name in JOBS:
            submit(cluster, name, data, epochs)
        overlapped = False
        while not overlapped and any(
            job["state"] in ("PENDING", "RUNNING") for job in cluster.get("jobs")
        ):
            overlapped = both_running(cluster)
        for name in JOBS:
            if cluster.wait(name) != 0:
                raise RuntimeError(str(cluster.describe(name)))
        return {name: digest(cluster, name) for name in JOBS}, overlapped


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = write_idx(directory, samples=1000)
        alone = {name: solo(name, data, options.epochs) for name in JOBS}
        joint, overlapped = together(data, options.epochs)
    for name in JOBS:
        print(f"{name}: alone {alone[name]}, with the other {joint[name]}")
    equal = sum(alone[name] == joint[name] for name in JOBS)
    print(
        f"figure: {equal} of {len(JOBS)} SHA-256 equal those of solo runs, "
        f"{'at' if overlapped else 'not at'} one time"
    )
    return 0 if equal == len(JOBS) and overlapped else 1


if __name__ == "__main__":
    sys.exit(main())
