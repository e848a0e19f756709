"""A few jobs of the walk in values.py; and the cases that motivated it, one by one."""

import hashlib
import tempfile
import unittest
from pathlib import Path

from tests.e2e import values
from tests.e2e.cluster import Cluster, job_file, wait_until
from tests.e2e.promises import check_same_bits


class Values(unittest.TestCase):
    def test_a_short_walk(self):
        counts = values.walk(jobs=8, seed=3)
        print(f"figure: {counts}")

    def test_after_every_change_of_policy_and_every_end(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        data = {"train": {"counter": {"samples": 300_000}}}
        with Cluster(shards=2, workers=1) as cluster:
            for begin, change in (
                ("bsp", "ssp:1"),
                ("bsp", "async"),
                ("ssp:1", "bsp"),
                ("async", "bsp"),
            ):
                for end in ("cancel", "succeed"):
                    name = f"{begin}-{change}-{end}".replace(":", "")
                    cluster.submit(
                        job_file(
                            name,
                            {"builtin": "counter"},
                            data,
                            consistency=values.POLICIES[begin],
                            batch={"global": 3000, "microBatches": 4},
                            optimizer={"sgd": {"learningRate": 1}},
                            stop={"epochs": 2 if end == "succeed" else 100_000},
                        )
                    )
                    cluster.wait_progress(name, step=3)
                    set_policy = cluster.cli("set", name, f"consistency={change}")
                    self.assertIn(set_policy.returncode, (0, 1), set_policy.stderr)
                    if end == "cancel":
                        wait_until(
                            lambda: cluster.describe(name)["policies"][-1].get("inForce"),
                            60,
                            "the change",
                        )
                        self.assertEqual(cluster.cli("cancel", name).returncode, 0)
                    cluster.wait(name)
                    files = []
                    for _ in range(2):
                        path = Path(folder.name) / "x.safetensors"
                        result = cluster.cli(
                            "export", name, "--format", "safetensors", "-o", str(path)
                        )
                        self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}")
                        files.append(hashlib.sha256(path.read_bytes()).hexdigest())
                    check_same_bits(dict(enumerate(files)))


if __name__ == "__main__":
    unittest.main()
