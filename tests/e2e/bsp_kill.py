"""BSP's bits when shards die within a step, and under random faults of all roles.

    bsp_kill.py [--kills N] [--schedules N] [--seed S]

First a job trains undisturbed. Then the same job trains again and again. A worker is stopped in the
middle of a step, so that the others' contributions to it have arrived and its own cannot; a shard
that waits for it is killed; the worker goes on. After N such kills the same job trains once under
each of N schedules of random faults of all roles (tests/e2e/faults.py). Prints `figure: ...`; exit
status 1 unless all runs end with the same SHA-256 of the parameters. Standard library only.
"""

import argparse
import random
import signal
import sys
import tempfile
import time

from tests.e2e.bsp_matrix_test import ADAM, LAYERS, write_idx
from tests.e2e.chaos import SHARDS, WORKERS, Log
from tests.e2e.cluster import Cluster, job_file, parameters_sha256
from tests.e2e.faults import CUT, END_STATES, KILL, PAUSE, Faults, accepted
from tests.e2e.namespaces_test import NamespaceCluster, why_not

STEPS = 1500
JOBS_PER_KILL = 20  # many more than it takes
FAULTS = 8  # of a schedule, at least; fewer if the job ends before
SETTLE = 0.3  # seconds in which the other workers finish what they can of a step
START_WAIT, END_WAIT, READ_WAIT = 120, 600, 120  # seconds


class Broken(Exception):
    """A run failed."""


class OpenSteps:
    """Which shards have some contributions of a step and wait for others, from their spans."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.cursors = {}

    def shards(self):
        """Only the newest step that has arrived anywhere counts: on a shard that lacks nothing of
        it, all slices were updated. Reads what was recorded since the last call."""
        arrived, updated, newest = {}, set(), -1
        for shard, span in self.cluster.new_spans(self.cursors)[0]:
            if span["category"] == "push":
                arrived[span["flow"]] = shard, span["clock"]
                newest = max(newest, span["clock"])
            elif span["category"] == "apply":
                updated.add(span["flow"])
        return sorted(
            {
                name
                for flow, (name, clock) in arrived.items()
                if clock == newest and flow not in updated
            }
        )


class Runs:
    """The same job, once after the other, on one cluster."""

    def __init__(self, cluster, data, log):
        self.cluster = cluster
        self.data = data
        self.log = log
        self.digests = {}  # SHA-256 -> the runs that ended with it

    def begin(self, name, seed=0, kinds=(KILL, PAUSE)):
        """Submits the job; returns its faults once all its partitions have two copies."""
        job = job_file(
            name,
            {"layers": LAYERS},
            {"train": {"idx": {"images": self.data[0], "labels": self.data[1]}}},
            optimizer=ADAM,
            batch={"global": 64, "microBatches": 8},
            workers={"min": 1, "max": WORKERS},
            stop={"epochs": STEPS, "steps": STEPS},
            durability="replicated",
        )
        faults = Faults(self.cluster, seed, set(), self.log, kinds)
        submit = lambda: self.cluster.submit(job)
        there = lambda: accepted(self.cluster, name, submit)
        faults.wait(there, START_WAIT, f"{name}'s acceptance")
        faults.jobs.add(name)
        faults.wait_replicated()
        return faults

    def ended(self, name):
        """Its status; None: it has not ended."""
        status = self.cluster.describe(name)
        return status if status["state"] in END_STATES else None

    def judge(self, name, faults):
        """Ends the faults, waits for the job's end, and reads its values."""
        faults.finish()
        status = faults.wait(lambda: self.ended(name), END_WAIT, f"{name} to end")
        if status["state"] != "SUCCEEDED" or faults.failures:
            why = "; ".join([status["reason"], *faults.failures])
            raise Broken(f"{name} is {status['state']}: {why}")
        tensors = faults.wait(
            lambda: self.cluster.try_export(name), READ_WAIT, f"the values of {name}"
        )
        digest = parameters_sha256(tensors)
        self.digests.setdefault(digest, []).append(name)
        self.cluster.cli("delete", name)
        self.log(f"{name}: {digest}")


def kill_within_steps(runs, kills, source):
    """The job, until so many shards were killed within a step; returns how often it trained."""
    open_steps, done, trained = OpenSteps(runs.cluster), 0, 0
    while done < kills:
        if trained >= JOBS_PER_KILL * kills:
            raise RuntimeError(f"{done} of {kills} kills in {trained} jobs: no step was seen open")
        name = f"killed-{trained}"
        trained += 1
        faults = runs.begin(name)
        while done < kills and runs.ended(name) is None:
            done += kill_within_a_step(runs.cluster, name, faults, open_steps, source)
        runs.judge(name, faults)
    return trained


def kill_within_a_step(cluster, name, faults, open_steps, source):
    """Whether it was possible: there may be no step at the moment, as between two epochs."""
    members = sorted(w["name"] for w in cluster.get("workers") if w.get("job") == name)
    if len(members) < 2:
        time.sleep(0.2)
        return False
    open_steps.shards()
    stopped = source.choice(members)
    cluster.kill(stopped, signal.SIGSTOP)
    try:
        time.sleep(SETTLE)
        waiting = open_steps.shards()
        if not waiting:
            return False
        faults.say(f"{', '.join(waiting)} have a part of a step and wait for {stopped}'s")
        victim = source.choice(waiting)
        before = faults.incarnation(victim)
        fault = faults.strike("shard", victim, KILL, 0)
    finally:
        cluster.kill(stopped, signal.SIGCONT)
    faults.wait_recovered(fault, before)
    return True


def schedules(runs, number, seed, kinds):
    """The job under random faults of all roles, so often; returns how many faults there were."""
    count = 0
    for i in range(number):
        name = f"schedule-{i}"
        faults = runs.begin(name, f"{seed} {i}", kinds)
        faults.start()
        try:
            enough = lambda: runs.ended(name) or len(faults.faults) >= FAULTS or None
            faults.wait(enough, END_WAIT, f"{FAULTS} faults")
            runs.judge(name, faults)
        finally:
            faults.abort()
        count += len(faults.faults)
    return count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    no_cuts = why_not()
    if no_cuts:
        print(f"NOT TESTED: no process is cut off from the network: {no_cuts}")
    kinds = (KILL, PAUSE) if no_cuts else (KILL, PAUSE, CUT)
    kind = Cluster if no_cuts else NamespaceCluster
    try:
        with tempfile.TemporaryDirectory() as folder, kind(
            shards=SHARDS, workers=WORKERS, worker_flags=["--lanes", "1"]
        ) as cluster:
            runs = Runs(cluster, write_idx(folder, samples=1000), Log())
            runs.judge("undisturbed", runs.begin("undisturbed"))
            trained = kill_within_steps(runs, options.kills, random.Random(options.seed))
            count = schedules(runs, options.schedules, options.seed, kinds)
    except Broken as broken:
        print(f"figure: {broken}")
        return 1
    print(
        f"figure: {options.kills} kills within a step in {trained} runs, {count} faults in "
        f"{options.schedules} schedules: {len(runs.digests)} SHA-256 over "
        f"{sum(map(len, runs.digests.values()))} runs, the undisturbed one among them"
    )
    return 0 if len(runs.digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
