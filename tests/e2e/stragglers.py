"""How long a BSP step takes when one of four workers is ten times slower, with a backup worker.

    stragglers.py [--steps N]

Four workers, one of them a backup worker (workers.backup: 1). Computing is emulated: each
micro-batch takes 20 ms more than its few microseconds, on the slow worker 200 ms. The same job
trains undisturbed, then with each worker in turn as the slow one, and, for comparison, without a
backup worker, with and without a slow worker. Prints `figure: ...`; exit status 1 unless a step
takes at most 1.3 times as long as with a backup worker and without the slow worker, whichever it
is, and all runs end with the same SHA-256 of the parameters. Standard library only.
"""

import argparse
import statistics
import sys
import tempfile
import threading

from tests.e2e.bsp_matrix_test import ADAM, LAYERS, write_idx
from tests.e2e.checkpoint_stall import Steps
from tests.e2e.cluster import Cluster, job_file, parameters_sha256, wait_until

WORKERS = 4
MICRO_BATCHES = 64
WAIT, SLOW_WAIT = 0.02, 0.2  # seconds, of each micro-batch
RATIO_MAX = 1.3
RATIO_TO_SHARED_MAX = 1.5  # of a step without a backup worker and without a slow one
FIRST_STEPS = 8  # in which workers join and the late one is found out
READ_EVERY = 0.5  # seconds


def waits(seconds):
    return ["--lanes", "1", "--inject-data-wait", f"{seconds}s"]


class Runs:
    """The same job, once after the other, on one cluster."""

    def __init__(self, cluster, data, micro_batches=MICRO_BATCHES):
        self.cluster = cluster
        self.data = data
        self.micro_batches = micro_batches
        self.digests = {}  # SHA-256 -> the runs that ended with it

    def restart(self, worker, wait):
        """Starts it again, with micro-batches that take so long."""
        before = self.status(worker)["incarnation"]
        self.cluster.flags_of[worker] = waits(wait)
        self.cluster.kill(worker)
        self.cluster.start_worker(worker)

        def back():
            status = self.status(worker)
            return status["incarnation"] != before and status["state"] == "idle"

        wait_until(back, 60, f"{worker} to be back")

    def status(self, worker):
        return next(w for w in self.cluster.get("workers") if w["name"] == worker)

    def job(self, name, backup, steps):
        size = self.cluster.workers
        return job_file(
            name,
            {"layers": LAYERS},
            {"train": {"idx": {"images": self.data[0], "labels": self.data[1]}}},
            optimizer=ADAM,
            batch={"global": self.micro_batches, "microBatches": self.micro_batches},
            workers={"min": size, "max": size, "backup": backup},
            stop={"steps": steps},
        )

    def train(self, name, backup, steps, observe=lambda: None):
        """Trains it to its end; returns when each step was completed. Calls `observe` meanwhile."""
        seen, over, errors = Steps(self.cluster), threading.Event(), []

        def read():
            try:
                while not over.wait(READ_EVERY):
                    seen.read()
                    observe()
            except Exception as error:
                errors.append(error)

        seen.read()  # what came before
        seen.completed.clear()
        self.cluster.submit(self.job(name, backup, steps))
        reader = threading.Thread(target=read)
        reader.start()
        try:
            status = self.cluster.wait(name, 600)
        finally:
            over.set()
            reader.join()
        if errors or status != 0:
            raise RuntimeError(f"{name}: {errors or self.cluster.describe(name)['reason']}")
        seen.read()
        if seen.lost_spans or len(seen.completed) != steps:
            raise RuntimeError(
                f"{name}: {len(seen.completed)} of {steps} steps were seen, "
                f"{seen.lost_spans} spans were lost"
            )
        digest = parameters_sha256(self.cluster.export(name))
        self.digests.setdefault(digest, []).append(name)
        self.cluster.cli("delete", name)
        return seen.completed


def step_seconds(completed, first):
    """The mean of the steps from `first` on, and the longest of all."""
    each = {n: at - completed[n - 1] for n, at in completed.items() if n - 1 in completed}
    return statistics.mean(s for n, s in each.items() if n >= first), max(each.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    names = [f"worker-{i}" for i in range(WORKERS)]
    flags = {name: waits(WAIT) for name in names}
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(shards=2, workers=WORKERS, flags_of=flags) as cluster,
    ):
        # All steps are in one epoch.
        runs = Runs(cluster, write_idx(folder, samples=MICRO_BATCHES * steps))
        without, _ = step_seconds(runs.train("undisturbed", 1, steps), FIRST_STEPS)
        shared, _ = step_seconds(runs.train("shared", 0, steps), FIRST_STEPS)
        print(f"nobody slow: {without:.3f} s a step; without a backup worker {shared:.3f} s")
        slow, found = {}, 0
        for name in names:
            runs.restart(name, SLOW_WAIT)
            slow[name], longest = step_seconds(runs.train(f"slow-{name}", 1, steps), FIRST_STEPS)
            found = max(found, longest)
            print(f"{name} slow: {slow[name]:.3f} s a step, {longest:.3f} s the longest one")
            if name != names[-1]:
                runs.restart(name, WAIT)
        # As few as show it; another job, as it ends elsewhere.
        few = Runs(cluster, runs.data)
        waited, _ = step_seconds(few.train("waits", 0, 6), 2)
    worst = max(slow.values())
    print(
        f"figure: {worst / without:.2f} x of nobody slow with a backup worker, "
        f"{worst / shared:.2f} x without one: {min(slow.values()):.3f} to {worst:.3f} s a step "
        f"with each worker slow in turn, {without:.3f} s with none; before it is found out, a step "
        f"takes {found:.2f} s; without a backup worker {waited:.2f} s with a slow worker, "
        f"{shared:.3f} s with none; {len(runs.digests)} SHA-256 over "
        f"{sum(map(len, runs.digests.values()))} runs"
    )
    fast = worst <= RATIO_MAX * without and worst <= RATIO_TO_SHARED_MAX * shared
    return 0 if fast and len(runs.digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
