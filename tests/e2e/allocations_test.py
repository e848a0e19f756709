"""A warm worker trains without allocations in our own code: small nets over 2 shards."""

import os
import pathlib
import tempfile
import unittest

from tests.e2e.allocations import calls_by_owner, count, counting_cluster, describe
from tests.e2e.bsp_matrix_test import LAYERS, write_idx
from tests.e2e.cluster import job_file
from tests.e2e.models_test import write_text

STOP = {"stop": {"epochs": 1000}}
SSP = {"consistency": {"ssp": {"staleness": 1}}, **STOP}


class Allocations(unittest.TestCase):
    def check(self, job):
        name = job["metadata"]["name"]
        with counting_cluster() as cluster:
            cluster.submit(job)
            # Pools grow to the greatest number in flight, on a busy machine perhaps after the
            # warm-up, but not for ever. What a step allocates appears every time.
            for last in (False, False, True):
                counted = count(cluster, name, steps=100, warm_up=200)
                lines = "\n".join(describe(name, counted, stacks=40))
                print(lines)
                if last or calls_by_owner(counted)["ours"] == 0:
                    break
        self.assertEqual(counted["lost"], 0)
        self.assertGreater(calls_by_owner(counted)["gRPC"], 0, "nothing was counted")
        self.assertEqual(calls_by_owner(counted)["ours"], 0, lines)
        return counted

    def check_convolutions(self, clip=None, **spec):
        with tempfile.TemporaryDirectory() as directory:
            images, labels = write_idx(directory, samples=3200)
            job = job_file(
                "convolutions",
                {"layers": LAYERS},
                {"train": {"idx": {"images": images, "labels": labels}}},
                **spec
            )
            if clip:
                job["spec"]["clip"] = clip
            self.check(job)

    def test_ssp(self):
        self.check_convolutions(**SSP)

    def test_ssp_with_a_clip_at_the_worker(self):
        self.check_convolutions(clip={"norm": 1.0, "scope": "worker"}, **SSP)

    def test_bsp(self):
        self.check_convolutions(consistency={"bsp": {}}, **STOP)

    def test_async(self):
        self.check_convolutions(consistency={"async": {}}, **STOP)

    def test_a_gpt(self):
        with tempfile.TemporaryDirectory() as directory:
            self.check(
                job_file(
                    "gpt",
                    {"builtin": "gpt2", "depth": 2, "heads": 2, "width": 16},
                    {"train": {"text": {"path": write_text(directory), "context": 16}}},
                    **SSP
                )
            )

    def test_images_that_are_decoded(self):
        tar = (
            pathlib.Path(os.environ.get("STARLING_DATA", "/nowhere"))
            / "cifar10"
            / "train-00000.tar"
        )
        if not tar.exists():
            self.skipTest("STARLING_DATA has no cifar10/train-00000.tar")
        counted = self.check(
            job_file(
                "images",
                {"layers": LAYERS},
                {
                    "train": {"webdataset": {"shards": [str(tar)]}},
                    "augment": {"cropPadding": 4, "horizontalFlip": True},
                },
                **SSP
            )
        )
        self.assertGreater(calls_by_owner(counted)["image decoder"], 0, "no image was decoded")


if __name__ == "__main__":
    unittest.main(verbosity=2)
