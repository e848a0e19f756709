"""Every process of a local cluster is killed at once, in the middle of a job, and `starling local
up` is run again: the job goes on from its last checkpoint without another command.

The job asks for no checkpoints, so it has those of a local cluster, one a minute. It is killed
shortly before the next one, when most is lost. Prints how much that was, in time of training.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.bsp_matrix_test import ADAM, LAYERS, write_idx
from tests.e2e.cluster import binary, job_file, wait_until

BEYOND = 50.0  # seconds of training after the last checkpoint
LOST_MAX = 60.0
JOB = "endless"


class Local:
    """A local cluster with a state folder of its own."""

    def __init__(self, home):
        self.home = Path(home)
        self.state = self.home / "starling" / "local"
        self.environment = {**os.environ, "XDG_STATE_HOME": str(home)}
        self.environment.pop("STARLING_COORDINATOR", None)

    def __call__(self, *args, check=True):
        command = [binary("tools/cli/starling"), *args]
        result = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"{args}: exit {result.returncode}: {result.stderr}")
        return result

    def up(self):
        self("local", "up", "--shards", "2", "--workers", "2", "--detach")

    def status(self):
        """None: the coordinator does not answer."""
        result = self("describe", "job", JOB, "-o", "json", check=False)
        return json.loads(result.stdout)["status"] if result.returncode == 0 else None

    def kill_all(self):
        daemons = [int(path.read_text()) for path in (self.state / "run").glob("*.pid")]
        stat = Path(f"/proc/{daemons[0]}/stat").read_text()
        supervisor = int(stat.rsplit(")", 1)[1].split()[1])
        for pid in [supervisor, *daemons]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it dies with its supervisor
        wait_until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in daemons), 10, "their end"
        )


def run(folder):
    local = Local(folder)
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
    local.up()
    try:
        local("submit", "-f", str(file))

        def so_far():
            status = local.status()
            age = (status or {}).get("checkpoint", {}).get("ageSeconds", 0)
            return status if BEYOND <= age < LOST_MAX else None

        before = wait_until(so_far, 300, "a checkpoint, and most of a minute after it", 0.2)
        begin = time.monotonic()
        local.kill_all()
        local.up()
        after = wait_until(
            lambda: (status := local.status())
            and status["state"] == "RUNNING"
            and status.get("restarts", 0) > 0
            and status,
            60,
            "the job to go on",
            0.1,
        )
        away = time.monotonic() - begin
        step = int(re.search(r"goes back to step (\d+)", after["lastRestart"])[1])
        wait_until(lambda: int(local.status()["step"]) > step, 60, "new steps")
        lost = before["runningSeconds"] - after["runningSeconds"]
        print(
            f"figure: killed at step {before['step']} and back at step {step} {away:.1f} s later; "
            f"{lost:.1f} s of training lost, {after['restarts']} rollback"
        )
        taken = before["checkpoint"]["last"]
        good = after["restarts"] == 1 and step >= int(taken["step"]) and lost <= LOST_MAX
        return 0 if good else 1
    finally:
        local("local", "down", check=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="starling-all-gone-") as home:
        sys.exit(run(home))
