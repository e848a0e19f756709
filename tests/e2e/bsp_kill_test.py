"""tests/e2e/bsp_kill.py: one kill of a shard within a step."""

import random
import tempfile
import unittest

from tests.e2e import bsp_kill, chaos
from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster
from tests.e2e.promises import check_one_digest


class KillWithinAStep(unittest.TestCase):
    def test_it_changes_no_bit(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(
            shards=chaos.SHARDS, workers=chaos.WORKERS, worker_flags=["--lanes", "1"]
        ) as cluster:
            runs = bsp_kill.Runs(cluster, write_idx(folder, samples=1000), chaos.Log())
            runs.judge("undisturbed", runs.begin("undisturbed"))
            bsp_kill.kill_within_steps(runs, 1, random.Random(1))
            check_one_digest(runs.digests)


if __name__ == "__main__":
    unittest.main()
