"""`starling doctor` on real processes: a cluster on one machine, then one that lost a worker
without notice."""

import json
import unittest

from tests.e2e.cluster import Cluster


class DoctorTest(unittest.TestCase):
    def test_a_cluster_on_this_machine_then_one_without_a_worker(self):
        with Cluster(shards=2, workers=2) as cluster:
            result = cluster.cli("doctor")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("\nnothing wrong: ", result.stdout)
            checks = json.loads(cluster.cli("doctor", "-o", "json").stdout)["checks"]
            subjects = {check["subject"] for check in checks if check["check"] == "bandwidth"}
            self.assertEqual(subjects, {f"worker-{w} -> shard-{s}" for w in (0, 1) for s in (0, 1)})
            cluster.kill("worker-1")
            result = cluster.cli("doctor")
            if "worker-1" in result.stdout:  # unless the coordinator already considers it lost
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn("FAIL  reach, worker-1: ", result.stdout)
                self.assertIn("FAIL  reach-back, worker-1: ", result.stdout)

    def test_this_machine_by_itself(self):
        with Cluster(shards=0, workers=0) as cluster:
            result = cluster.cli("doctor", "--node")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("open-files, ", result.stdout)


if __name__ == "__main__":
    unittest.main()
