"""The policy of a running job changes, BSP to SSP(3) to async to BSP, while real processes train
and a worker is killed. Each batch counts once, and the log says at which clock each policy took
effect.
"""

import re
import tempfile
import unittest

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, wait_until
from tests.e2e.promises import check_coverage

CHANGES = ["ssp:3", "async", "bsp"]
TEXTS = {"ssp:3": "ssp(3)", "async": "async", "bsp": "bsp"}


class SetPolicy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        images, labels = write_idx(folder.name, samples=1600)
        self.data = {"train": {"idx": {"images": images, "labels": labels}}}

    def change(self, cluster, job, setting):
        """Returns the clock at which it is in force; daemons may be killed until then."""
        result = cluster.cli("set", job, f"consistency={setting}")
        self.assertEqual(result.returncode, 0, result.stderr)
        number = int(re.search(r"policy (\d+)", result.stderr).group(1))
        return number, lambda: [
            p
            for p in cluster.describe(job)["policies"]
            if int(p.get("number", 0)) == number and p.get("inForce")
        ]

    def test_every_policy_in_one_run(self):
        with Cluster(shards=2, workers=3) as cluster:
            cluster.submit(
                job_file(
                    "live",
                    {"builtin": "mlp", "hidden": [32]},
                    self.data,
                    consistency={"bsp": {}},
                    workers={"min": 1, "max": 3},
                    stop={"epochs": 100000},
                )
            )
            cluster.wait_progress("live", step=5)
            clocks = [0]
            for i, setting in enumerate(CHANGES):
                number, in_force = self.change(cluster, "live", setting)
                self.assertEqual(number, i + 1)
                if setting == "async":
                    cluster.kill("worker-1")
                record = wait_until(in_force, 60, f"policy {setting} to be in force")[0]
                clocks.append(int(record["step"]))
                status = cluster.describe("live")
                self.assertEqual(status["policy"], TEXTS[setting])
                cluster.wait_progress("live", step=clocks[-1] + 60)
            self.assertEqual(clocks, sorted(clocks))
            log = cluster.cli("logs", "live").stdout
            for number, setting in enumerate(CHANGES, 1):
                self.assertIn(
                    f"policy {number}, {TEXTS[setting]}, is in force from clock {clocks[number]} ",
                    log,
                )
            # Two changes in a row, then the end.
            self.change(cluster, "live", "ssp:1")
            number, in_force = self.change(cluster, "live", "bsp")
            wait_until(in_force, 60, "the second of two changes")
            status = cluster.describe("live")
            check_coverage(status)
            self.assertFalse(status["reproducible"])
            self.assertEqual(cluster.cli("cancel", "live").returncode, 0)
            late = cluster.cli("set", "live", "consistency=async")
            self.assertNotEqual(late.returncode, 0)
            self.assertIn("is over", late.stderr)
            print(f"figure: policies took effect at clocks {clocks}")


if __name__ == "__main__":
    unittest.main()
