"""`starling explain` on real processes: jobs that are healthy, slow, short of a worker, or waiting.

Timings are not judged here (machines stall), but waits cannot be shorter than the injected ones.
explain.py measures them.
"""

import tempfile
import unittest

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, wait_until
from tests.e2e.explain import CASES, Case, endless_job, explain, replay, slowed_cluster


class ExplainTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.images, self.labels = write_idx(folder.name, samples=6400)

    def first_finding(self, cluster, cause):
        """The first finding about the job `slowed`, as soon as its cause is `cause`."""

        def there():
            reply, status = explain(cluster, "slowed")
            if not reply["findings"]:
                self.assertEqual(status, 0)
                return None
            self.assertEqual(status, 1)
            first = reply["findings"][0]
            return first if first["cause"] == cause else None

        return wait_until(there, 120, f"explain to name {cause}", interval=0.5)

    def provoke(self, cause):
        case = next(case for case in CASES if case.cause == cause)
        with slowed_cluster(case) as cluster:
            cluster.submit(
                endless_job("slowed", self.images, self.labels, case.policy, case.workers)
            )
            first = self.first_finding(cluster, cause)
            if case.subject:
                self.assertEqual(first["subject"], case.subject)
            self.assertGreater(first["figure"], 0.5 * case.figure)
            self.assertTrue(first["remedy"])
            self.assertTrue(cluster.cli("explain", "slowed").stdout.startswith(f"{cause}: "))

    def test_a_slow_worker(self):
        self.provoke("slow-worker")

    def test_data_that_come_late(self):
        self.provoke("data-bound")

    def test_a_hot_partition(self):
        self.provoke("hot-partition")

    def test_a_healthy_job_then_one_that_lost_a_worker_then_none(self):
        healthy = Case("", 0, policy={"ssp": {"staleness": 2}})
        with slowed_cluster(healthy) as cluster:
            cluster.submit(endless_job("slowed", self.images, self.labels, healthy.policy, 2))

            def said():
                reply, status = explain(cluster, "slowed")
                return status == 0 and len(reply["phases"]) == 6

            wait_until(
                said,
                120,
                "explain to say where the time goes, and that nothing is wrong",
                interval=0.5,
            )
            address = next(w["address"] for w in cluster.get("workers") if w["name"] == "worker-1")
            cluster.kill("worker-1")
            first = self.first_finding(cluster, "missing-worker")
            self.assertEqual(first["subject"], "worker-1")
            self.assertIn(address, first["text"])
            self.assertGreater(first["figure"], 0)
            self.assertEqual(cluster.cli("cancel", "slowed").returncode, 0)
            reply, status = explain(cluster, "slowed")
            self.assertEqual((reply["findings"], status), ([], 0))

    def test_a_job_that_waits_for_workers(self):
        with Cluster(shards=1, workers=1, worker_flags=replay()) as cluster:
            cluster.submit(endless_job("slowed", self.images, self.labels, {"async": {}}, 2))
            self.assertIn("start 1 more", self.first_finding(cluster, "pending")["text"])
            nobody = cluster.cli("explain", "nobody")
            self.assertEqual(nobody.returncode, 5, nobody)


if __name__ == "__main__":
    unittest.main()
