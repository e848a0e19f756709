"""Training allocates nothing in our own code once it is warm: small nets over 2 shards under SSP(1)."""

import tempfile
import unittest

from tests.e2e.allocations import calls_by_owner, count, counting_cluster, describe
from tests.e2e.bsp_matrix_test import LAYERS, write_idx
from tests.e2e.cluster import job_file
from tests.e2e.models_test import write_text

SSP = {"consistency": {"ssp": {"staleness": 1}}, "stop": {"epochs": 1000}}


class Allocations(unittest.TestCase):

    def check(self, job):
        name = job["metadata"]["name"]
        with counting_cluster() as cluster:
            cluster.submit(job)
            # Pools grow to the most that was ever under way, on a busy machine perhaps after the
            # warm-up: that is over some time. What a step allocates is there each time.
            for last in (False, False, True):
                counted = count(cluster, name, steps=100, warm_up=200)
                lines = "\n".join(describe(name, counted, stacks=40))
                print(lines)
                if last or calls_by_owner(counted)["ours"] == 0:
                    break
        self.assertEqual(counted["lost"], 0)
        self.assertGreater(calls_by_owner(counted)["gRPC"], 0, "nothing was counted")
        self.assertEqual(calls_by_owner(counted)["ours"], 0, lines)

    def test_a_convolutional_net(self):
        with tempfile.TemporaryDirectory() as directory:
            images, labels = write_idx(directory, samples=3200)
            self.check(job_file("convolutions", {"layers": LAYERS},
                                {"train": {"idx": {"images": images, "labels": labels}}}, **SSP))

    def test_a_gpt(self):
        with tempfile.TemporaryDirectory() as directory:
            self.check(job_file("gpt", {"builtin": "gpt2", "depth": 2, "heads": 2, "width": 16},
                                {"train": {"text": {"path": write_text(directory), "context": 16}}}, **SSP))


if __name__ == "__main__":
    unittest.main()
