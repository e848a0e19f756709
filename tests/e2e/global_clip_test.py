"""A job that clips its whole gradient: one scale per step, the same bits on any cluster.

The first step is compared with the formula (PyTorch's clip_grad_norm_), computed here in doubles.
"""

import math
import tempfile
import unittest

from tests.e2e.bsp_matrix_test import LAYERS, write_idx
from tests.e2e.cluster import Cluster, floats, job_file, parameters_sha256
from tests.e2e.promises import check_same_bits

STEPS = 1500  # so many that a shard dies in the middle


def make_job(name, data, workers, norm, **more):
    job = job_file(
        name,
        {"layers": LAYERS},
        {"train": {"idx": {"images": data[0], "labels": data[1]}}},
        batch={"global": 64, "microBatches": 8},
        workers={"min": 1, "max": workers},
        **more,
    )
    if norm:
        job["spec"]["clip"] = {"norm": norm, "scope": "global"}
    return job


class GlobalClip(unittest.TestCase):
    def run_one(self, data, shards, workers, disturb=None, **more):
        with Cluster(shards=shards, workers=workers) as cluster:
            momentum = {"momentum": {"learningRate": 0.05, "momentum": 0.9}}
            cluster.submit(make_job("clipped", data, workers, 0.8, optimizer=momentum, **more))
            if disturb:
                disturb(cluster)
            self.assertEqual(cluster.wait("clipped", 240), 0, cluster.describe("clipped"))
            return parameters_sha256(cluster.export("clipped"))

    def test_one_sha256_on_any_cluster_and_with_kills(self):
        seen = {}
        with tempfile.TemporaryDirectory() as directory:
            data = write_idx(directory, samples=1000)  # 15 full batches and one of 40
            for shards, workers, kill in [(1, 1, False), (3, 2, False), (2, 2, True)]:
                disturb = lambda cluster: cluster.disturb("clipped", "worker-1")
                seen[shards, workers, kill] = self.run_one(
                    data, shards, workers, disturb if kill else None, stop={"epochs": 4}
                )
        print(f"figure: {len(set(seen.values()))} SHA-256 over {len(seen)} runs")
        check_same_bits(seen)

    def test_a_shard_that_dies_changes_no_bit(self):
        """Also the one with partition 0, which decides for all."""
        seen = {}
        with tempfile.TemporaryDirectory() as directory:
            data = write_idx(directory, samples=1000)
            more = {"stop": {"steps": STEPS}, "durability": "replicated"}
            seen["nobody"] = self.run_one(data, 2, 2, **more)
            for shard in ("shard-0", "shard-1"):
                disturb = lambda cluster: cluster.replace_shard("clipped", shard)
                seen[shard] = self.run_one(data, 2, 2, disturb, **more)
        print(f"figure: {len(set(seen.values()))} SHA-256 over {len(seen)} runs")
        check_same_bits(seen)

    def one_step(self, cluster, name, data, rate, norm=None):
        cluster.submit(
            make_job(
                name, data, 1, norm, stop={"steps": 1}, optimizer={"sgd": {"learningRate": rate}}
            )
        )
        self.assertEqual(cluster.wait(name, 120), 0, cluster.describe(name))
        return {key: floats(tensor) for key, tensor in cluster.export(name).items()}

    def test_one_step_is_the_formula(self):
        norm = 0.25
        with tempfile.TemporaryDirectory() as directory, Cluster(shards=2, workers=1) as cluster:
            data = write_idx(directory, samples=256)
            start = self.one_step(cluster, "start", data, 1e-30)  # too small to change a float
            free = self.one_step(cluster, "free", data, 1.0)
            clipped = self.one_step(cluster, "clipped", data, 1.0, norm)
            loose = self.one_step(cluster, "loose", data, 1.0, 1000.0)
        self.assertEqual(loose, free, "a norm that is not reached changes no bit")
        trained = [key for key in start if "running" not in key]
        self.assertLess(len(trained), len(start), "batch norm's statistics are among them")
        gradient = {key: [a - b for a, b in zip(start[key], free[key])] for key in trained}
        length = math.sqrt(math.fsum(g * g for values in gradient.values() for g in values))
        self.assertGreater(length, 2 * norm)
        factor = min(1.0, norm / (length + 1e-6))
        worst = 0.0
        for key in trained:
            for before, g, after in zip(start[key], gradient[key], clipped[key]):
                worst = max(worst, abs(before - factor * g - after))
        print(
            f"figure: gradient of norm {length:.4f}, factor {factor:.6f}, greatest difference "
            f"{worst:.2e}"
        )
        self.assertLess(worst, 1e-6)
        for key in set(start) - set(trained):
            self.assertEqual(clipped[key], free[key], f"{key} is a statistic: it is not clipped")


if __name__ == "__main__":
    unittest.main()
