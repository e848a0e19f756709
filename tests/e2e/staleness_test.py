"""The staleness bound holds with a straggler, and a stopped worker neither blocks nor corrupts (G2).

The straggler is a real worker that is stopped nine tenths of the time. --full stops a worker for
60 s; by default it is stopped until the coordinator has taken it off the roster.
"""

import argparse
import signal
import sys
import tempfile
import threading
import time
import unittest

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, wait_until

FULL = False
MLP = {"builtin": "mlp", "hidden": [32, 16]}


class Throttle(threading.Thread):
    """Lets a process run one tenth of the time, in slices of 3 ms."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.done = process, threading.Event()

    def run(self):
        while not self.done.is_set() and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)
            self.done.wait(0.027)
            self.process.send_signal(signal.SIGCONT)
            self.done.wait(0.003)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)


class Staleness(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        images, labels = write_idx(folder.name, samples=3200)
        self.data = {"train": {"idx": {"images": images, "labels": labels}}}

    def job(self, name, epochs, model=None):
        return job_file(name, model or MLP, self.data, consistency={"ssp": {"staleness": 2}},
                        workers={"min": 1, "max": 3}, stop={"epochs": epochs})

    def test_the_lag_never_exceeds_the_bound_with_a_straggler(self):
        with Cluster(shards=2, workers=3) as cluster:
            throttle = Throttle(cluster.processes["worker-2"])
            cluster.submit(self.job("straggler", epochs=8))
            cluster.wait_progress("straggler", step=10)
            throttle.start()
            self.assertEqual(cluster.wait("straggler", 240), 0)
            throttle.done.set()
            throttle.join()
            status = cluster.describe("straggler")
            histogram = [int(n) for n in status.get("lagHistogram", [])]
            print(f"figure: greatest lag {status['stalenessMax']}, pulls by lag {histogram}")
            self.assertLessEqual(int(status["stalenessMax"]), 2)
            self.assertGreater(sum(histogram[1:]), 0, "nobody was ever ahead: the straggler was not one")

    def test_a_stopped_worker_is_fenced_and_rejoins(self):
        with Cluster(shards=2, workers=2) as cluster:
            # Large enough that the worker is stopped while it computes, so that it has something to push.
            cluster.submit(self.job("stopped", epochs=100000,
                                    model={"builtin": "mlp", "hidden": [1024, 1024]}))
            cluster.wait_progress("stopped", step=20)
            before = {w["name"]: int(w["incarnation"]) for w in cluster.get("workers")}
            cluster.kill("worker-1", signal.SIGSTOP)
            began = time.monotonic()
            wait_until(lambda: any(w["name"] == "worker-1" and w["state"] == "lost"
                                   for w in cluster.get("workers")), 30, "worker-1 to be taken off")
            step = int(cluster.describe("stopped")["step"])
            cluster.wait_progress("stopped", step=step + 50)
            if FULL:
                time.sleep(max(0.0, 60 - (time.monotonic() - began)))
            stopped = time.monotonic() - began
            cluster.kill("worker-1", signal.SIGCONT)
            wait_until(lambda: any(w["name"] == "worker-1" and w["state"] == "training"
                                   and int(w["incarnation"]) > before["worker-1"]
                                   for w in cluster.get("workers")), 30, "worker-1 to rejoin")
            step = int(cluster.describe("stopped")["step"])
            cluster.wait_progress("stopped", step=step + 50)
            log = (cluster.directory / "worker-1.log").read_text()
            self.assertRegex(log, r"answers: error .*not in roster", "its stale push was not refused")
            self.assertIn("registered as worker", log.split("not in roster")[-1])
            self.assertLessEqual(int(cluster.describe("stopped")["stalenessMax"]), 2)
            print(f"figure: stopped for {stopped:.0f} s, rejoined with a new incarnation")
            self.assertEqual(cluster.cli("cancel", "stopped").returncode, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    known, rest = parser.parse_known_args()
    FULL = known.full
    unittest.main(argv=[sys.argv[0], *rest])
