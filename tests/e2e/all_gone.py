"""Every process of a local cluster is killed at once, in the middle of a job, and `starling local
up` is run again: the job goes on from its last checkpoint without another command.

The job asks for no checkpoints, so it has those of a local cluster, one a minute. Two are waited
for, to see how old the last one gets, and the kill comes at a random moment before the next. Prints
how much was lost, in time of training, and how much would have been at the worst moment.
"""

import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.bsp_matrix_test import ADAM, LAYERS, write_idx
from tests.e2e.cluster import job_file, wait_until
from tests.e2e.local_cluster import LocalCluster

LOST_MAX = 60.0
JOB = "endless"


def checked(result):
    if result.returncode != 0:
        raise RuntimeError(f"{result.args}: exit {result.returncode}: {result.stderr}")


def status_of(cluster):
    """None: the coordinator does not answer."""
    result = cluster.starling("describe", "job", JOB, "-o", "json")
    return json.loads(result.stdout)["status"] if result.returncode == 0 else None


class Checkpoints:
    """What is seen of a job's checkpoints by looking again and again."""

    def __init__(self):
        self.last = None  # its id
        self.count = 0
        self.oldest = 0.0  # seconds: the greatest age at which the last one was still the last

    def see(self, status):
        seen = (status or {}).get("checkpoint", {})
        if "last" not in seen:
            return
        if seen["last"]["id"] != self.last:
            self.last = seen["last"]["id"]
            self.count += 1
        self.oldest = max(self.oldest, seen["ageSeconds"])


def run(folder):
    cluster = LocalCluster(folder)
    images, labels = write_idx(Path(folder), samples=1000)
    data = {"train": {"idx": {"images": images, "labels": labels}}}
    job = job_file(
        JOB,
        {"layers": LAYERS},
        data,
        optimizer=ADAM,
        batch={"global": 64, "microBatches": 8},
        workers={"min": 1, "max": 2},
        stop={"steps": 10_000_000},
    )
    file = Path(folder) / "job.json"
    file.write_text(json.dumps(job))
    checked(cluster.up())
    try:
        checked(cluster.starling("submit", "-f", str(file)))
        checkpoints = Checkpoints()

        def two():
            checkpoints.see(status_of(cluster))
            return checkpoints.count >= 2

        wait_until(two, 300, "two checkpoints", 0.2)
        kill_at = time.monotonic() + random.uniform(0, LOST_MAX)
        before = None
        while time.monotonic() < kill_at:
            before = status_of(cluster) or before
            checkpoints.see(before)
            time.sleep(min(0.2, max(0.0, kill_at - time.monotonic())))
        before = status_of(cluster) or before
        if before is None:
            raise RuntimeError("the coordinator did not answer before the kill")
        begin = time.monotonic()
        cluster.kill_all()
        checked(cluster.up())
        after = wait_until(
            lambda: (status := status_of(cluster))
            and status["state"] == "RUNNING"
            and status.get("restarts", 0) > 0
            and status,
            60,
            "the job to go on",
            0.1,
        )
        away = time.monotonic() - begin
        step = int(re.search(r"goes back to step (\d+)", after["lastRestart"])[1])
        wait_until(
            lambda: int((status_of(cluster) or {}).get("step", 0)) > step, 60, "new steps", 0.2
        )
        taken = before["checkpoint"]
        lost = max(taken["ageSeconds"], before["runningSeconds"] - after["runningSeconds"])
        print(
            f"figure: killed at step {before['step']} and back at step {step} {away:.1f} s later; "
            f"{lost:.1f} s of training lost, {checkpoints.oldest:.1f} s at the worst moment, "
            f"{after['restarts']} rollback"
        )
        whole = step >= int(taken["last"]["step"])
        good = after["restarts"] == 1 and whole and max(lost, checkpoints.oldest) <= LOST_MAX
        return 0 if good else 1
    finally:
        cluster.starling("local", "down")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="starling-all-gone-") as home:
        sys.exit(run(home))
