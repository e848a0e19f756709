"""Who computes on what: workers with a GPU, without one, and jobs that say which they want.

The GPU is the CPU behind the interface of libstarling_cuda.so, and behind memory that ends the worker
when the host touches it, so this runs anywhere.
"""

import unittest

from tests.e2e.cluster import Cluster, binary, job_file

ABSENT = "/nonexistent/libstarling_cuda.so"


def job(name, device):
    return job_file(name, {"builtin": "counter"}, {"train": {"counter": {"samples": 64}}},
                    batch={"global": 8, "microBatches": 4},
                    workers={"min": 1, "max": 1, "device": device})


def log(cluster, name):
    return (cluster.directory / f"{name}.log").read_text()


class Device(unittest.TestCase):

    def test_without_a_gpu(self):
        with Cluster(workers=1, worker_flags=["--cuda-library", ABSENT]) as cluster:
            self.assertEqual(log(cluster, "worker-0").count("NO GPU"), 1)
            self.assertIn(f"because there is no {ABSENT}", log(cluster, "worker-0"))
            with self.assertRaises(RuntimeError) as refused:
                cluster.submit(job("wants-gpu", "gpu"))
            self.assertIn("no worker of this cluster has a GPU: worker-0 computes on cpu (",
                          str(refused.exception))
            self.assertIn(f"because there is no {ABSENT}", str(refused.exception))
            cluster.submit(job("any", "auto"))
            self.assertEqual(cluster.wait("any"), 0)

            cluster.start_worker("worker-1", "--device", "gpu")
            self.assertEqual(cluster.exit_status("worker-1"), 1)
            self.assertIn("--device gpu: there is no ", log(cluster, "worker-1"))
            cluster.start_worker("worker-2", "--cuda-graphs", "perhaps")
            self.assertEqual(cluster.exit_status("worker-2"), 1)
            self.assertIn('--cuda-graphs: expected on or off, got "perhaps"', log(cluster, "worker-2"))

    def test_with_a_gpu(self):
        flags = {"worker-1": ["--device", "gpu", "--cuda-library",
                              binary("kernels/cuda/testing/libcpu_as_gpu.so")],
                 "worker-0": ["--device", "cpu"]}
        with Cluster(workers=2, flags_of=flags) as cluster:
            self.assertNotIn("NO GPU", log(cluster, "worker-1"))
            for device in ("gpu", "cpu", "auto"):
                cluster.submit(job(device, device))
                self.assertEqual(cluster.wait(device), 0)
            self.assertNotIn('prepared job "gpu"', log(cluster, "worker-0"))
            self.assertIn('prepared job "gpu"', log(cluster, "worker-1"))


if __name__ == "__main__":
    unittest.main()
