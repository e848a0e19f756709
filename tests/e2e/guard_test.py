"""A guard tightens a running job's policy by itself, step by step, and says why.

Pushes are delayed, so that updates come later than the job's limit. The losses at which a guard
acts are covered by its unit test and measured by guard.py.
"""

import re
import tempfile
import unittest

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, wait_until


class GuardTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        images, labels = write_idx(folder.name, samples=3200)
        self.data = {"train": {"idx": {"images": images, "labels": labels}}}

    def test_it_tightens_step_by_step_and_says_why(self):
        with Cluster(
            shards=1, workers=3, worker_flags=["--inject-push-delay", "0.02s", "--lanes", "1"]
        ) as cluster:
            cluster.submit(
                job_file(
                    "late",
                    {"builtin": "mlp", "hidden": [32, 16]},
                    self.data,
                    workers={"min": 3, "max": 3},
                    consistency={"async": {}, "guard": {"lag": 1, "staleness": 2, "window": 8}},
                    stop={"epochs": 100000},
                )
            )

            def tightened():
                status = cluster.describe("late")
                self.assertEqual(status["state"], "RUNNING", status)
                return status if status["policy"] == "bsp" else None

            status = wait_until(tightened, 240, "the guard to end in BSP")
            step = int(status["step"])
            cluster.wait_progress("late", step=step + 20)  # and training goes on
            log = cluster.cli("logs", "late").stdout
            self.assertEqual(cluster.cli("cancel", "late").returncode, 0)
        kinds = [(p["policy"]["kind"], p["policy"].get("staleness", 0)) for p in status["policies"]]
        self.assertEqual(kinds, [("ASYNC", 0), ("SSP", 2), ("BSP", 0)])
        for policy in status["policies"][1:]:
            self.assertRegex(
                policy["by"],
                r"^guard: updates came up to \d+ updates late for \d+ batches on end; "
                r"the limit is 1$",
            )
        for policy in (r"ssp\(2\)", "bsp"):
            self.assertTrue(re.search(rf"{policy}, was requested: guard: ", log), log)


if __name__ == "__main__":
    unittest.main()
