"""Each sample counts exactly once per epoch, on real processes under kills (G1, G6).

`builtin: counter`: sample i's gradient is -1 at row i and the rate is 1, so at the cut of epoch e
every row is e + 1. A worker is killed in every epoch; the copy made at each cut is read from the
shards while the next epoch runs.
"""

import argparse
import random
import sys
import unittest

from tests.e2e.cluster import Cluster, floats, job_file, wait_until
from tests.e2e.promises import check, check_counted, check_coverage

SEEDS = 1
SAMPLES = 4096
EPOCHS = 3
POLICIES = ({"bsp": {}}, {"ssp": {"staleness": 2}}, {"async": {}})


class Counter(unittest.TestCase):
    def check_rows(self, cluster, expected_epochs):
        """Exports the newest cut and checks all rows; returns its number of epochs."""
        tensors = wait_until(lambda: cluster.try_export("counter"), 30, "a copy of the parameters")
        rows = floats(tensors["counter"])
        check_counted(rows, rows[0], SAMPLES)
        check(rows[0] in expected_epochs, f"each sample was counted {rows[0]} times")
        return int(rows[0])

    def run_one(self, cluster, seed, policy):
        source = random.Random(seed)
        data = {"train": {"counter": {"samples": SAMPLES}}, "test": {"counter": {"samples": 64}}}
        cluster.submit(
            job_file(
                "counter",
                {"builtin": "counter"},
                data,
                seed=seed,
                consistency=policy,
                batch={"global": 8, "microBatches": 4},
                workers={"min": 1, "max": 3},
                optimizer={"sgd": {"learningRate": 1}},
                evaluate={"everyEpochs": 1},
                stop={"epochs": EPOCHS},
            )
        )
        seen = set()
        steps = SAMPLES // 8
        for epoch in range(EPOCHS):
            status = cluster.wait_progress(
                "counter", epoch=epoch, step=epoch * steps + source.randrange(steps // 8)
            )
            victim = f"worker-{source.randrange(3)}"
            if status["state"] == "RUNNING":
                cluster.kill(victim)
                cluster.start_worker(victim)
            if epoch > 0:
                seen.add(self.check_rows(cluster, range(1, EPOCHS + 1)))
        self.assertEqual(cluster.wait("counter", 120), 0)
        self.check_rows(cluster, [EPOCHS])
        status = cluster.describe("counter")
        self.assertEqual(int(status["coverageExpected"]), steps)
        check_coverage(status)
        self.assertEqual(cluster.cli("delete", "counter").returncode, 0)
        return seen

    def test_every_row_equals_the_epoch(self):
        runs = 0
        with Cluster(shards=2, workers=3) as cluster:
            for seed in range(SEEDS):
                for policy in POLICIES if SEEDS == 1 else [POLICIES[seed % 3]]:
                    seen = self.run_one(cluster, seed, policy)
                    runs += 1
                    print(
                        f"seed {seed} {next(iter(policy))}: cuts read while running: "
                        f"{sorted(seen)}",
                        flush=True,
                    )
        print(f"figure: {runs} runs, every row exact at every cut read")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    known, rest = parser.parse_known_args()
    SEEDS = known.seeds
    unittest.main(argv=[sys.argv[0], *rest])
