"""The staleness bound holds with a straggler, and a stopped worker neither blocks nor corrupts
(G2).

The straggler is a real worker that is stopped nine tenths of the time. --full stops a worker for 60
s; by default it is stopped until the coordinator has taken it off the roster.
"""

import argparse
import re
import signal
import sys
import tempfile
import threading
import time
import unittest

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, wait_until
from tests.e2e.promises import check_staleness

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
        return job_file(
            name,
            model or MLP,
            self.data,
            consistency={"ssp": {"staleness": 2}},
            workers={"min": 1, "max": 3},
            stop={"epochs": epochs},
        )

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
            check_staleness(status, 2)
            self.assertGreater(
                sum(histogram[1:]), 0, "nobody was ever ahead: the straggler was not one"
            )

    def stop_and_continue(self, cluster, seconds):
        """Stops worker-1 until it is off the roster and others have made progress; then until it
        rejoined."""

        def incarnation(state):
            return [
                int(w["incarnation"])
                for w in cluster.get("workers")
                if w["name"] == "worker-1" and w["state"] == state
            ]

        before = max(wait_until(lambda: incarnation("training"), 30, "worker-1 to train"))
        began = time.monotonic()
        cluster.kill("worker-1", signal.SIGSTOP)
        wait_until(lambda: incarnation("lost"), 30, "worker-1 to be taken off")
        step = int(cluster.describe("stopped")["step"])
        cluster.wait_progress("stopped", step=step + 50)
        wait_until(
            lambda: time.monotonic() - began >= seconds, seconds + 30, "time to pass", interval=0.5
        )
        stopped = time.monotonic() - began
        cluster.kill("worker-1", signal.SIGCONT)
        wait_until(
            lambda: max(incarnation("training"), default=0) > before, 30, "worker-1 to rejoin"
        )
        step = int(cluster.describe("stopped")["step"])
        cluster.wait_progress("stopped", step=step + 50)
        return stopped

    def test_a_stopped_worker_is_fenced_and_rejoins(self):
        with Cluster(shards=2, workers=2) as cluster:
            # Large slices and little computing, so it is likely to be stopped with pushes in
            # flight. After it resumes, its pushes race with the coordinator's order that takes it
            # off the roster. If the order is first, there is nothing to refuse, and the worker is
            # stopped again.
            cluster.submit(
                self.job("stopped", epochs=100000, model={"builtin": "mlp", "hidden": [1024, 1024]})
            )
            cluster.wait_progress("stopped", step=20)
            longest, refused, tries = 0, False, 0
            while not refused and tries < 10:
                longest = max(
                    longest, self.stop_and_continue(cluster, 60 if FULL and tries == 0 else 0)
                )
                tries += 1
                log = (cluster.directory / "worker-1.log").read_text()
                refused = re.search("registers anew: .*not in roster", log) is not None
            self.assertTrue(refused, "no stale request was ever refused")
            check_staleness(cluster.describe("stopped"), 2)
            print(
                f"figure: stopped for {longest:.0f} s, {tries} stops until a stale request was "
                "refused, rejoined each time"
            )
            self.assertEqual(cluster.cli("cancel", "stopped").returncode, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    known, rest = parser.parse_known_args()
    FULL = known.full
    unittest.main(argv=[sys.argv[0], *rest])
