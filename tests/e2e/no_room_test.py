"""A worker lacks memory for a job: the job trains on the others, and says why."""

import unittest

from tests.e2e.cluster import Cluster, job_file

TINY = {"worker-0": ["--memory-bytes", "1"]}


class NoRoom(unittest.TestCase):
    def test_the_job_goes_on_without_it(self):
        with Cluster(workers=2, flags_of=TINY) as cluster:
            cluster.submit(
                job_file(
                    "both",
                    {"builtin": "counter"},
                    {"train": {"counter": {"samples": 1600}}},
                    batch={"global": 8, "microBatches": 4},
                    workers={"min": 2, "max": 2},
                )
            )
            self.assertEqual(cluster.wait("both"), 0)
            said = cluster.cli("logs", "both").stdout
            self.assertIn("goes on without worker-0: worker worker-0: the job needs ", said)
            self.assertNotIn("worker-0 joined", said)
            self.assertIn("worker-1 joined", said)


if __name__ == "__main__":
    unittest.main()
