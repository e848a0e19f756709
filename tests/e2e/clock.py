"""Each daemon's wall clock is set back and forth by an hour while jobs run.

Each daemon has its own settable wall clock (wall_clock.c, preloaded); its monotonic clock is not
changed. A job with stop.wallTime runs throughout, beside one that trains for ever. After each clock
step another job is submitted, trained over newly opened streams, and its output written. Prints
`figure:` at the end. Exit status 1: a job ended early or late or stood still, or a daemon was
considered lost.
"""

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e import preload  # noqa: E402
from tests.e2e.bsp_matrix_test import write_idx  # noqa: E402
from tests.e2e.cluster import Cluster, job_file, wait_until  # noqa: E402

HOUR = 3600
STEPS = (HOUR, -HOUR, -HOUR, HOUR)  # ends where it started
LATE_MAX_SECONDS = 3


class ClockedCluster(Cluster):
    """A cluster whose daemons' wall clocks can be set."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.library = preload.library("wall_clock.c", self.directory)
        self.clocks = {}

    def _spawn(self, name, command):
        clock = self.clocks[name] = preload.Number(self.directory / f"{name}.clock")
        super()._spawn(
            name, ["env", f"LD_PRELOAD={self.library}", f"WALL_CLOCK_FILE={clock.path}", *command]
        )

    def step(self, name, seconds):
        self.clocks[name].value += seconds


def identities(cluster):
    """The registered daemons, by name; raises if one is considered lost."""
    there = {}
    for kind in ("shards", "workers"):
        for daemon in cluster.get(kind):
            if daemon["state"] in ("lost", "left", "unknown"):
                raise AssertionError(f"{daemon['name']} is {daemon['state']}")
            there[daemon["name"]] = daemon["incarnation"]
    return there


def check_clocks(cluster, off):
    """Checks that daemons' clocks, as they measure them, differ by an hour, or that none
    differs."""
    said = cluster.cli("doctor").stdout
    if bool(re.search(r"its clock is 3(599|600)\.\d+ s (ahead|behind)", said)) != off:
        raise AssertionError(
            f"expected the clocks {'to differ by an hour' if off else 'to agree'}: {said}"
        )


def train_and_write(cluster, name):
    """Takes one job from its submission to its output file."""
    job = job_file(
        name,
        {"builtin": "counter"},
        {"train": {"counter": {"samples": 64}}},
        batch={"global": 8, "microBatches": 4},
        workers={"min": 1, "max": 1},
        consistency={"ssp": {"staleness": 1}},
        optimizer={"sgd": {"learningRate": 1}},
    )
    job["spec"]["output"] = f"{name}.safetensors"
    cluster.submit(job)
    if cluster.wait(name, 30) != 0:
        raise AssertionError(f"{name}: {cluster.describe(name)}")

    def written():
        output = cluster.describe(name)["output"]
        if output["state"] == "FAILED":
            raise AssertionError(f"{name}: {output['error']}")
        return output["state"] == "WRITTEN"

    wait_until(written, 30, f"the output of {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=7, help="after each step; silence ends at 5"
    )
    arguments = parser.parse_args()
    daemons = ["coordinator", "shard-0", "shard-1", "worker-0", "worker-3"]
    limit = int(len(daemons) * len(STEPS) * (arguments.seconds + 4) + 30)
    flags = ["--lanes", "1", "--replay-compute", "0.02s,0.04s"]
    with tempfile.TemporaryDirectory() as data, ClockedCluster(
        shards=2, workers=4, worker_flags=flags, flags_of={"coordinator": ["--output-root", data]}
    ) as cluster:
        images, labels = write_idx(data, 4096)

        def submit(name, consistency, workers, stop):
            cluster.submit(
                job_file(
                    name,
                    {"builtin": "mlp", "hidden": [64]},
                    {"train": {"idx": {"images": images, "labels": labels}}},
                    consistency=consistency,
                    batch={"global": 64, "microBatches": 8},
                    workers={"min": workers, "max": workers},
                    stop=stop,
                )
            )

        submit("timed", {"bsp": {}}, 2, {"epochs": 100_000, "wallTime": f"{limit}s"})
        began = time.monotonic()
        submit("endless", {"ssp": {"staleness": 2}}, 1, {"epochs": 100_000})
        for job in ("timed", "endless"):
            cluster.wait_progress(job, step=5)
        there = identities(cluster)
        slowest = 1e9
        for name in daemons:
            for number, step in enumerate(STEPS):
                cluster.step(name, step)
                train_and_write(cluster, f"of-{name}-{number}")
                check_clocks(cluster, off=number % 2 == 0)
                before = {job: cluster.describe(job)["step"] for job in ("timed", "endless")}
                time.sleep(arguments.seconds)
                assert (
                    identities(cluster) == there
                ), f"after {step} s at {name}: {identities(cluster)}"
                for job, steps in before.items():
                    status = cluster.describe(job)
                    assert status["state"] == "RUNNING", f"after {step} s at {name}: {status}"
                    rate = (int(status["step"]) - int(steps)) / arguments.seconds
                    slowest = min(slowest, rate)
                    assert rate > 1, f"after {step} s at {name} {job} goes on at {rate} steps/s"
        assert cluster.wait("timed", limit) == 0
        took = time.monotonic() - began
        status = cluster.describe("timed")
        late = abs(took - limit)
        print(
            f"figure: {len(daemons) * len(STEPS)} steps of an hour at {len(daemons)} daemons, no "
            f"death, at least {slowest:.1f} steps/s after each; wallTime {limit} s ended after "
            f"{took:.1f} s ({status['reason']}), running {status['runningSeconds']:.1f} s"
        )
        return (
            0
            if late <= LATE_MAX_SECONDS and cluster.describe("endless")["state"] == "RUNNING"
            else 1
        )


if __name__ == "__main__":
    sys.exit(main())
