"""precision: fp16 on real processes: gradients that overflow are skipped, and the loss scale drops.

The net doubles its activations a few times, and thus the gradients on the way back: with the loss
scaled by 65536 they exceed fp16's 65504 at once.
"""

import tempfile
import unittest

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, parameters_sha256
from tests.e2e.promises import check_coverage, check_same_bits

STEPS = 1500  # so many that a shard dies in the middle


def doubling_net(times):
    layers = [
        {"conv2d": {"out_channels": 6, "kernel": 3, "padding": 1}},
        "batchnorm",
        "relu",
        {"maxpool2d": {"kernel": 2}},
        "flatten",
        {"linear": {"out_features": 24}},
        {"relu": {"name": "x0"}},
    ]
    for i in range(times):
        layers += [
            {"relu": {"name": f"{side}{i}", "inputs": [f"x{i}"]}} for side in ("left", "right")
        ]
        layers.append({"add": {"name": f"x{i + 1}", "inputs": [f"left{i}", f"right{i}"]}})
    return {"layers": layers + [{"linear": {"out_features": 10}}]}


def make_job(name, data, doublings, **more):
    job = job_file(
        name,
        doubling_net(doublings),
        {"train": {"idx": {"images": data[0], "labels": data[1]}}},
        batch={"global": 64, "microBatches": 8},
        optimizer={"adam": {"learningRate": 0.0001}},
        **more,
    )
    job["spec"]["precision"] = "fp16"
    return job


class Fp16(unittest.TestCase):
    def skipped(self, status):
        """Some steps were skipped, not all; the scale was halved as often."""
        skipped = int(status["skippedSteps"])
        self.assertGreater(skipped, 0)
        self.assertLess(skipped, int(status["steps"]) // 2)
        self.assertLess(status["lossScale"], 65536)
        check_coverage(status)
        losses = [epoch["trainLoss"] for epoch in status["epochsDone"]]
        self.assertLess(losses[-1], 0.8 * losses[0], losses)
        return skipped

    def run_bsp(self, data, shards, workers, kill):
        with Cluster(shards=shards, workers=workers) as cluster:
            cluster.submit(
                make_job("half", data, 9, stop={"epochs": 5}, workers={"min": 1, "max": workers})
            )
            if kill:
                cluster.disturb("half", f"worker-{workers - 1}")
            self.assertEqual(cluster.wait("half", 240), 0, cluster.describe("half"))
            status = cluster.describe("half")
            described = cluster.cli("describe", "job", "half").stdout
            self.assertIn(f"fp16, loss scale {status['lossScale']:,.0f}, ", described)
            return (
                parameters_sha256(cluster.export("half")),
                self.skipped(status),
                status["lossScale"],
            )

    def test_bsp_skips_the_same_steps_on_any_cluster(self):
        seen = {}
        with tempfile.TemporaryDirectory() as directory:
            data = write_idx(directory, samples=1000)  # 15 full batches and one of 40
            for shards, workers, kill in [(1, 1, False), (3, 2, False), (2, 2, True)]:
                seen[shards, workers, kill] = self.run_bsp(data, shards, workers, kill)
        print(
            f"figure: {seen[1, 1, False][1]} steps skipped, {len(set(seen.values()))} results of "
            f"{len(seen)} runs"
        )
        check_same_bits(seen)

    def test_a_shard_that_dies_changes_no_bit(self):
        """Also the one with partition 0, which decides for all."""
        seen = {}
        with tempfile.TemporaryDirectory() as directory:
            data = write_idx(directory, samples=1000)
            for killed in ("nobody", "shard-0", "shard-1"):
                with Cluster(shards=2, workers=2) as cluster:
                    more = {"stop": {"steps": STEPS}, "durability": "replicated"}
                    cluster.submit(make_job("half", data, 9, workers={"min": 1, "max": 2}, **more))
                    if killed in cluster.processes:
                        cluster.replace_shard("half", killed)
                    self.assertEqual(cluster.wait("half", 240), 0, cluster.describe("half"))
                    status = cluster.describe("half")
                    self.assertGreater(int(status["skippedSteps"]), 0)
                    digest = parameters_sha256(cluster.export("half"))
                    seen[killed] = (digest, status["skippedSteps"], status["lossScale"])
        print(f"figure: {len(set(seen.values()))} results of {len(seen)} runs")
        check_same_bits(seen)

    def test_other_policies_skip_contributions(self):
        with tempfile.TemporaryDirectory() as directory, Cluster(shards=2, workers=2) as cluster:
            data = write_idx(directory, samples=1000)
            for name, consistency in (("ssp", {"ssp": {"staleness": 2}}), ("async", {"async": {}})):
                cluster.submit(
                    make_job(
                        name,
                        data,
                        9,
                        stop={"epochs": 5},
                        consistency=consistency,
                        workers={"min": 2, "max": 2},
                    )
                )
                self.assertEqual(cluster.wait(name, 240), 0, cluster.describe(name))
                self.skipped(cluster.describe(name))

    def test_an_overflow_for_ever_stops_the_job(self):
        with tempfile.TemporaryDirectory() as directory, Cluster(shards=2, workers=1) as cluster:
            data = write_idx(directory, samples=640)
            for name, consistency in (("bsp", {"bsp": {}}), ("ssp", {"ssp": {"staleness": 1}})):
                cluster.submit(
                    make_job(name, data, 24, stop={"epochs": 10}, consistency=consistency)
                )
                self.assertNotEqual(cluster.wait(name, 240), 0)
                status = cluster.describe(name)
                self.assertEqual(status["state"], "FAILED")
                self.assertRegex(
                    status["reason"],
                    r"fp16: the gradient of step 16, by worker \d+, overflowed "
                    r"with the loss scaled by 1, the least",
                )


if __name__ == "__main__":
    unittest.main()
