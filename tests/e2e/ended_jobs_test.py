"""Ended jobs block nothing, however long their specifications are.

Jobs of 4 MiB, so many that together they do not fit into a message, end beside one that trains. It
keeps finishing epochs, even after the coordinator was killed. The shard has freed what only
training needs, and each ended job can be exported and deleted.
"""

import unittest

from tests.e2e import scrape
from tests.e2e.cluster import Cluster, floats, job_file, wait_until
from tests.e2e.past import large_file
from tests.e2e.promises import check_counted

JOBS = 19  # 76 MiB; a message has at most 64
SAMPLES = 8


class EndedJobs(unittest.TestCase):
    def test_long_specifications_that_are_over_stop_nobody(self):
        with Cluster(shards=1, workers=2, worker_flags=["--lanes", "1"]) as cluster:
            cluster.submit(
                job_file(
                    "trains",
                    {"builtin": "counter"},
                    {"train": {"counter": {"samples": 64}}},
                    batch={"global": 8, "microBatches": 4},
                    consistency={"ssp": {"staleness": 1}},
                    optimizer={"sgd": {"learningRate": 1}},
                    stop={"epochs": 1_000_000},
                )
            )
            for i in range(JOBS):
                path = large_file(cluster, f"large-{i}")
                submitted = cluster.cli("submit", "-f", str(path))
                self.assertEqual(submitted.returncode, 0, submitted.stderr)
                path.unlink()
                self.assertEqual(cluster.wait(f"large-{i}", 120), 0)
            self.epochs_go_on(cluster)
            cluster.restart_coordinator()
            self.epochs_go_on(cluster)
            self.assertEqual([shard["state"] for shard in cluster.get("shards")], ["ready"])

            # Each has one version of its values and no metric series.
            def metrics():
                return scrape.parse(cluster.ask("shard-0", "/metrics")[2])

            def kept():
                return scrape.value(metrics(), "starling_ps_ended_value_bytes")

            wait_until(lambda: kept() == JOBS * SAMPLES * 4, 30, "all but values to be freed")
            names = {
                labels["job_name"]
                for _, samples in metrics().values()
                for _, labels, _ in samples
                if "job_name" in labels
            }
            self.assertEqual(names, {"trains"})

            for i in (0, JOBS - 1):
                rows = floats(cluster.export(f"large-{i}")["counter"])
                check_counted(rows, 1, SAMPLES)
            deleted = cluster.cli("delete", "--ended")
            self.assertEqual(deleted.returncode, 0, deleted.stderr)
            wait_until(lambda: kept() == 0, 30, "the values of deleted jobs to be freed")
            self.epochs_go_on(cluster)

    def epochs_go_on(self, cluster):
        epoch = int(cluster.describe("trains")["epoch"])
        cluster.wait_progress("trains", epoch=epoch + 3)


if __name__ == "__main__":
    unittest.main()
