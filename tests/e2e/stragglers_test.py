"""With a backup worker a slow worker is found out and named, and the bits stay."""

import tempfile
import unittest

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster
from tests.e2e.promises import check_one_digest
from tests.e2e.stragglers import Runs, waits

WORKERS, MICRO_BATCHES, STEPS = 3, 8, 200
WAIT, SLOW_WAIT = 0.01, 0.1


class Stragglers(unittest.TestCase):
    def test_a_slow_worker_is_named_and_the_bits_stay(self):
        names = [f"worker-{i}" for i in range(WORKERS)]
        flags = {name: waits(WAIT) for name in names}
        with (
            tempfile.TemporaryDirectory() as folder,
            Cluster(shards=2, workers=WORKERS, flags_of=flags) as cluster,
        ):
            data = write_idx(folder, samples=MICRO_BATCHES * 20)
            runs = Runs(cluster, data, MICRO_BATCHES)
            repeats = []  # who was seen to repeat whose part
            late, table = set(), [""]

            def observe():
                for worker in cluster.get("workers"):
                    if worker.get("repeats"):
                        repeats.append((worker["name"], worker["repeats"]))
                for job in cluster.get("jobs"):
                    if job.get("lateWorkers"):
                        late.update(job["lateWorkers"])
                        table.append(cluster.cli("describe", "job", job["name"]).stdout)

            runs.train("all-share", 0, STEPS, observe)
            self.assertEqual(repeats, [])
            runs.train("none-slow", 1, STEPS, observe)
            backup = repeats[-1][0]  # by then all are members
            slow = next(name for name in names if name not in (backup, repeats[-1][1]))
            runs.restart(slow, SLOW_WAIT)
            repeats.clear()  # where nobody is late the first member's part is repeated
            runs.train("one-slow", 1, STEPS, observe)
            self.assertIn((backup, slow), repeats)
            said = f"{slow}, late by"
            self.assertTrue([text for text in late if text.startswith(said)], late)
            self.assertIn(f"Late:          {slow}, late by", "".join(table))
            self.assertIn("REPEATS", "".join(table))
            check_one_digest(runs.digests)

    def test_what_cannot_be_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(workers=1) as cluster:
            runs = Runs(cluster, write_idx(folder, samples=64), MICRO_BATCHES)
            with self.assertRaisesRegex(RuntimeError, "fewer than workers.max, 1, got 1"):
                cluster.submit(runs.job("none-left", 1, 1))


if __name__ == "__main__":
    unittest.main()
