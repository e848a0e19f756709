"""Jobs that train one after the other, for as long as it takes, while processes fail: counters, of
which every row is checked, and MNIST.

A counter's gradients are integers: sample i adds 1 to row i, so after E epochs each row is E,
unless an acknowledged update was lost (less) or applied twice (more). Standard library only.
"""

import math
import os
import threading
import time
from pathlib import Path

from tests.e2e import mnist
from tests.e2e.cluster import floats, job_file
from tests.e2e.faults import END_STATES, Aborted, accepted
from tests.e2e.promises import PromiseBroken

SAMPLES, BATCH = 540_000, 10_000  # three slices, so that each of three shards may lead one
ITEMS = SAMPLES // BATCH  # per epoch
POLICIES = {"bsp": {"bsp": {}}, "ssp": {"ssp": {"staleness": 2}}, "async": {"async": {}}}
COUNTER_SECONDS = 45  # roughly how long one trains
FIRST_EPOCHS = 4
# Each micro-batch comes later by this, so that the counter leaves the processors to MNIST.
WORKER_FLAGS = ["--lanes", "1", "--inject-data-wait", "0.01s"]
MNIST_EPOCHS, MNIST_ITEMS = 5, math.ceil(60_000 / 128)
START_WAIT = 180  # seconds until a job has been accepted and has two copies
READ_WAIT = 120  # seconds until a job that has ended can be read
END_WAIT = 1800  # seconds until a job ends
CUT_EVERY = 5  # seconds between two looks at the copy that an epoch's end leaves


def why_no_mnist():
    folder = os.environ.get("STARLING_DATA")
    if not folder:
        return "STARLING_DATA is not set"
    return "" if (Path(folder) / "mnist").is_dir() else f"{folder} has no mnist/"


class LongJobs:
    """One kind of job, again and again. `faults` (tests/e2e/faults.py) knows a job from its second
    copy until it was judged, and has no shard die before and after. A subclass says what a job is,
    and judges it. `results` is of the main thread after finish()."""

    kind = ""

    def __init__(self, cluster, faults, say, started=lambda status, items: None):
        self.cluster = cluster
        self.faults = faults
        self.say = say
        self.started = started  # called with a running job's status and its items per epoch
        self.results = []
        self.failures = []  # why the thread ended early
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self):
        self._thread.start()

    def finish(self):
        """Starts no other job, and returns once the last one has been judged."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self):
        try:
            while not self._over.is_set():
                self._train(f"{self.kind}-{len(self.results)}")
        except Aborted:
            pass
        except Exception as error:  # told by the main thread
            self.failures.append(f"{type(error).__name__}: {error}")

    def _train(self, name):
        self.prepare(len(self.results))
        wait = self.faults.wait
        with self.faults.quiet:
            submit = lambda: self.submit(name)
            wait(lambda: accepted(self.cluster, name, submit), START_WAIT, f"{name}'s acceptance")
            self.faults.jobs.add(name)
            self.faults.wait_replicated()
        begin = time.monotonic()
        self.started(self.cluster.describe(name), self.items)
        status = wait(lambda: self._ended(name), END_WAIT, f"job {name} to end", every=2)
        result = {
            "job": name,
            "state": status["state"],
            "seconds": round(time.monotonic() - begin, 1),
            "failovers": status["failovers"],
        }
        if status["state"] == "SUCCEEDED":
            result.update(self.judge(name, status))
        else:
            result["reason"] = status["reason"]
        self.faults.jobs.discard(name)
        self.results.append(result)
        self.say(", ".join(f"{key} {value}" for key, value in result.items()))
        self.cluster.cli("delete", name)

    def _ended(self, name):
        status = self.cluster.describe(name)
        if status["state"] in END_STATES:
            return status
        self.look(name)
        return None

    def look(self, name):
        """Called now and then while the job runs."""


class Counters(LongJobs):
    """Under each policy in turn."""

    kind = "counter"
    items = ITEMS

    def __init__(self, *more, **named):
        super().__init__(*more, **named)
        self.cuts = 0  # copies at an epoch's end that were exact
        self._looked = 0.0

    def prepare(self, number):
        self.policy = list(POLICIES)[number % len(POLICIES)]
        self.epochs = FIRST_EPOCHS
        if self.results and self.results[-1]["state"] == "SUCCEEDED":
            last = self.results[-1]
            self.epochs = max(2, round(last["epochs"] * COUNTER_SECONDS / last["seconds"]))

    def submit(self, name):
        data = {"train": {"counter": {"samples": SAMPLES}}, "test": {"counter": {"samples": 64}}}
        self.cluster.submit(
            job_file(
                name,
                {"builtin": "counter"},
                data,
                consistency=POLICIES[self.policy],
                batch={"global": BATCH, "microBatches": 4},
                workers={"min": 1, "max": 2},
                optimizer={"sgd": {"learningRate": 1}},
                evaluate={"everyEpochs": 1},
                stop={"epochs": self.epochs},
                durability="replicated",
            )
        )

    def look(self, name):
        """The copy made at the end of an epoch has each sample that often."""
        if time.monotonic() < self._looked + CUT_EVERY:
            return
        self._looked = time.monotonic()
        tensors = self.cluster.try_export(name)
        if tensors is None:
            return  # none yet, or a shard that it is read from has just died
        rows = floats(tensors["counter"])
        if min(rows) != max(rows):
            lost, twice = miscounts(rows, max(set(rows), key=rows.count))
            raise PromiseBroken(
                f"job {name}: at the end of an epoch rows are from {min(rows)} to {max(rows)}: "
                f"{lost} too few, {twice} too many"
            )
        self.cuts += 1

    def judge(self, name, status):
        tensors = self.faults.wait(
            lambda: self.cluster.try_export(name), READ_WAIT, f"job {name}'s values"
        )
        lost, twice = miscounts(floats(tensors["counter"]), self.epochs)
        return {
            "policy": self.policy,
            "epochs": self.epochs,
            "updates": SAMPLES * self.epochs,
            "lost": lost,
            "twice": twice,
        }


class Mnist(LongJobs):
    """examples/mnist_cnn.yaml with another seed each time."""

    kind = "mnist"
    items = MNIST_ITEMS

    def prepare(self, number):
        self.seed = number + 1

    def submit(self, name):
        mnist.submit(self.cluster, name, f"seed={self.seed}", f"stop.epochs={MNIST_EPOCHS}")

    def judge(self, name, status):
        evaluated = [epoch for epoch in status["epochsDone"] if epoch.get("evaluated")]
        return {"accuracy": round(evaluated[-1]["testAccuracy"], 4)}


def miscounts(rows, epochs):
    """How many updates are missing, and how many were applied more than once."""
    if min(rows) == max(rows) == epochs:
        return 0, 0
    return (
        int(sum(max(0, epochs - row) for row in rows)),
        int(sum(max(0, row - epochs) for row in rows)),
    )
