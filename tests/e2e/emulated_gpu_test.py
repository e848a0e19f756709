"""A worker's CUDA backend end to end, on the emulated runtime (kernels/cuda/emulation), beside a
worker on a CPU.

Its kernels compute in a job of two shards, and its GPU memory use does not change. Needs the CUDA
toolkit's headers.
"""

import tempfile
import unittest

from tests.e2e.allocations import device_peak
from tests.e2e.bsp_matrix_test import LAYERS, write_idx
from tests.e2e.cluster import Cluster, binary, job_file

try:
    LIBRARY = binary("kernels/cuda/emulation/libstarling_cuda.so")
except FileNotFoundError:
    LIBRARY = None


@unittest.skipIf(LIBRARY is None, "no CUDA toolkit, with whose headers the emulation is built")
class EmulatedGpu(unittest.TestCase):
    def train(self, precision, flags_of):
        """The final loss, with two workers."""
        with tempfile.TemporaryDirectory() as folder, Cluster(
            shards=2, workers=2, flags_of=flags_of
        ) as cluster:
            images, labels = write_idx(folder, samples=640)
            job = job_file(
                "net",
                {"layers": LAYERS},
                {
                    "train": {"idx": {"images": images, "labels": labels}},
                    "test": {"idx": {"images": images, "labels": labels}},
                },
                batch={"global": 64, "microBatches": 4},
                workers={"min": 2, "max": 2},
                optimizer={"adam": {"learningRate": 0.01}},
                evaluate={"everyEpochs": 1},
                stop={"epochs": 4},
            )
            job["spec"]["precision"] = precision
            cluster.submit(job)
            self.assertEqual(cluster.wait("net"), 0, cluster.describe("net"))
            self.assertNotIn("no CUDA graphs", (cluster.directory / "worker-0.log").read_text())
            return cluster.describe("net")["trainLoss"]

    def test_trains_beside_a_cpu(self):
        cpu, gpu = ["--device", "cpu"], ["--device", "gpu", "--cuda-library", LIBRARY]
        for precision in ("fp32", "bf16", "fp16"):
            with self.subTest(precision):
                expected = self.train(precision, {"worker-0": cpu, "worker-1": cpu})
                loss = self.train(precision, {"worker-0": gpu, "worker-1": cpu})
                self.assertLess(expected, 0.5, "it learned nothing")
                self.assertAlmostEqual(loss, expected, delta=0.02)

    def test_a_steady_state_takes_nothing_more_of_the_gpu(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(
            workers=1, worker_flags=["--device", "gpu", "--cuda-library", LIBRARY]
        ) as cluster:
            images, labels = write_idx(folder, samples=640)
            cluster.submit(
                job_file(
                    "net",
                    {"layers": LAYERS},
                    {"train": {"idx": {"images": images, "labels": labels}}},
                    batch={"global": 16, "microBatches": 2},
                    stop={"epochs": 100000},
                )
            )
            step = cluster.wait_progress("net", step=20)["step"]
            before = device_peak(cluster)
            cluster.wait_progress("net", step=step + 100)
            self.assertGreater(before, 0)
            self.assertEqual(device_peak(cluster), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
