"""Each shard in turn is asked to stop, and started again, while a job trains.

    drain.py [--rounds N]

Three shards and two workers. A shard that is asked has handed over all that it led or backed when
it ends, with status 0, and the job goes on meanwhile. Prints `figure: ...` with the longest time
between the completions of two steps, which is the longest gap between acknowledgements; exit status
1 if a shard did not end so, or the job did not go on. Standard library only.
"""

import argparse
import signal
import sys
import tempfile
import threading
import time

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.checkpoint_stall import Steps
from tests.e2e.cluster import Cluster, job_file

SHARDS, WORKERS = 3, 2
READ_EVERY = 0.5  # seconds
DRAIN_WITHIN = 60  # seconds
STEPS_BETWEEN = 20


def job(data):
    return job_file(
        "goes-on",
        {"builtin": "mlp", "hidden": [256, 256]},
        {"train": {"idx": {"images": data[0], "labels": data[1]}}},
        consistency={"ssp": {"staleness": 2}},
        batch={"global": 128, "microBatches": 2},
        workers={"min": 1, "max": WORKERS},
        stop={"epochs": 100_000},
    )


def drain_one(cluster, name):
    """Seconds from SIGTERM to the end. Raises if the shard did not hand over, or the job stops."""
    cluster.wait_whole("goes-on")
    began = time.monotonic()
    cluster.kill(name, signal.SIGTERM)
    status = cluster.exit_status(name, DRAIN_WITHIN)
    took = time.monotonic() - began
    if status != 0:
        raise RuntimeError(f"{name} ended with status {status}: {cluster.log(name)[-500:]}")
    step = int(cluster.describe("goes-on")["step"])
    cluster.wait_progress("goes-on", step=step + STEPS_BETWEEN)
    cluster.start_shard(name)
    cluster.wait_registered(SHARDS, WORKERS)
    return took


def longest_gap(completed):
    """Between the completions of two steps that follow each other in time."""
    times = sorted(completed.values())
    return max((b - a for a, b in zip(times, times[1:])), default=0.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(shards=SHARDS, workers=WORKERS) as cluster,
    ):
        cluster.submit(job(write_idx(folder, samples=1280)))
        cluster.wait_progress("goes-on", step=STEPS_BETWEEN)
        steps, over, took, errors = Steps(cluster), threading.Event(), [], []

        def read():
            try:
                while not over.wait(READ_EVERY):
                    steps.read()
            except Exception as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(options.rounds):
                took += [drain_one(cluster, f"shard-{i}") for i in range(SHARDS)]
        finally:
            over.set()
            reader.join()
        if errors:
            raise errors[0]
        steps.read()
        status = cluster.describe("goes-on")
        if len(steps.completed) < STEPS_BETWEEN * len(took):
            raise RuntimeError(f"only {len(steps.completed)} steps were seen to complete")
    print(
        f"figure: {len(took)} shards drained in {max(took):.1f} s at most; the job is "
        f"{status['state']} at step {status['step']}, rolled back {status.get('restarts', 0)} "
        f"times; the longest gap between completed steps {longest_gap(steps.completed):.2f} s "
        f"({len(steps.completed)} steps, {steps.lost_spans} spans not seen)"
    )
    return 0 if status["state"] == "RUNNING" and not status.get("restarts") else 1


if __name__ == "__main__":
    sys.exit(main())
