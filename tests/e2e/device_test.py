"""Which worker computes on what: workers with a GPU, without one, and jobs that ask for either.

The GPU is the CPU behind the interface of libstarling_cuda.so, with memory that kills the worker
when the host touches it, so this runs anywhere.
"""

import collections
import json
import os
import pathlib
import re
import tempfile
import unittest
from unittest import mock

from tests.e2e.bsp_matrix_test import LAYERS, write_idx
from tests.e2e.cluster import Cluster, binary, job_file, wait_until
from tests.e2e.trace_check import Trace, check

ABSENT = "/nonexistent/libstarling_cuda.so"
GPU = ["--device", "gpu", "--cuda-library", binary("kernels/cuda/testing/libcpu_as_gpu.so")]


def job(name, device):
    return job_file(
        name,
        {"builtin": "counter"},
        {"train": {"counter": {"samples": 64}}},
        batch={"global": 8, "microBatches": 4},
        workers={"min": 1, "max": 1, "device": device},
    )


def log(cluster, name):
    return (cluster.directory / f"{name}.log").read_text()


def gpu_of(size):
    """Workers that are started in the block have a GPU with this many bytes."""
    return mock.patch.dict(os.environ, CPU_AS_GPU_BYTES=str(size))


class Device(unittest.TestCase):
    def test_without_a_gpu(self):
        with Cluster(workers=1, worker_flags=["--cuda-library", ABSENT]) as cluster:
            self.assertEqual(log(cluster, "worker-0").count("NO GPU"), 1)
            self.assertIn(f"because there is no {ABSENT}", log(cluster, "worker-0"))
            with self.assertRaises(RuntimeError) as refused:
                cluster.submit(job("wants-gpu", "gpu"))
            self.assertIn(
                "no worker of this cluster has a GPU: worker-0 computes on cpu (",
                str(refused.exception),
            )
            self.assertIn(f"because there is no {ABSENT}", str(refused.exception))
            cluster.submit(job("any", "auto"))
            self.assertEqual(cluster.wait("any"), 0)

            cluster.start_worker("worker-1", "--device", "gpu")
            self.assertEqual(cluster.exit_status("worker-1"), 1)
            self.assertIn("--device gpu: there is no ", log(cluster, "worker-1"))
            if not pathlib.Path("/dev/nvidiactl").exists():
                with Cluster(workers=1) as plain:  # without a GPU
                    self.assertIn(
                        "info  worker worker-0: computes on the CPU, because",
                        log(plain, "worker-0"),
                    )
                    self.assertNotIn("NO GPU", log(plain, "worker-0"))
            cluster.start_worker("worker-2", "--cuda-graphs", "perhaps")
            self.assertEqual(cluster.exit_status("worker-2"), 1)
            self.assertIn(
                '--cuda-graphs: expected on or off, got "perhaps"', log(cluster, "worker-2")
            )
            cluster.start_worker("worker-3", "--coordinator-timeout", "abc")
            self.assertEqual(cluster.exit_status("worker-3"), 1)
            self.assertIn(
                "--coordinator-timeout: expected a duration above 0 like 90s, 30m or 2h, got "
                '"abc"',
                log(cluster, "worker-3"),
            )

    def test_what_a_gpu_did_is_seen(self):
        """A job's share of its memory, and in a trace what it computed and when, beside copies
        and launches."""
        with tempfile.TemporaryDirectory() as folder, gpu_of(256 << 20), Cluster(
            workers=1, worker_flags=[*GPU, "--lanes", "1"]
        ) as cluster:
            images, labels = write_idx(folder, samples=1024)
            cluster.submit(
                job_file(
                    "seen",
                    {"layers": LAYERS},
                    {"train": {"idx": {"images": images, "labels": labels}}},
                    batch={"global": 64, "microBatches": 2},
                    stop={"epochs": 100000},
                )
            )
            cluster.wait_progress("seen", step=5)
            memory = wait_until(
                lambda: cluster.get("workers")[0].get("memory", {}), 30, "its memory"
            )
            planned, peak = int(memory["plannedBytes"]), int(memory["devicePeakBytes"])
            self.assertGreaterEqual(peak, planned)
            self.assertLess(
                peak, planned + (2 << 20), "in whole pages, with buffers of pushes on the host"
            )
            file = f"{folder}/trace.json"
            result = cluster.cli("trace", "seen", "--steps", "200", "-o", file)
            self.assertEqual(result.returncode, 0, result.stderr)
            document = json.loads(pathlib.Path(file).read_text())
        self.assertEqual(check(document), [])
        trace = Trace(document)
        rows = {name for (what, _, _), name in trace.names.items() if what == "thread_name"}
        self.assertLessEqual({"lane 0", "device 0", "copies 0"}, rows)
        # What was launched within the recording also ran within it, except at its edges.
        ran = collections.Counter(span["name"] for span in trace.of("device", "worker "))
        ordered = collections.Counter(
            span["name"]
            for category in ("forward", "backward")
            for span in trace.of(category, "worker ")
        )
        self.assertEqual(set(ran), set(ordered))
        for name, times in ordered.items():
            self.assertGreater(times, 10, name)
            self.assertAlmostEqual(ran[name], times, delta=4, msg=name)

    def test_with_a_gpu(self):
        flags = {"worker-1": GPU, "worker-0": ["--device", "cpu"]}
        with Cluster(workers=2, flags_of=flags) as cluster:
            self.assertNotIn("NO GPU", log(cluster, "worker-1"))
            for device in ("gpu", "cpu", "auto"):
                cluster.submit(job(device, device))
                self.assertEqual(cluster.wait(device), 0)
            self.assertNotIn('prepared job "gpu"', log(cluster, "worker-0"))
            self.assertIn('prepared job "gpu"', log(cluster, "worker-1"))

    def test_a_job_larger_than_the_gpu(self):
        """Refused before its first step, with sizes and a batch that would fit, and does."""
        batch = {"global": 2048, "microBatches": 4}
        needs = (
            r"worker-0: the job needs ([\d.]+) MiB here with batch\.global 2048 in "
            r"micro-batches of 512 .*, "
        )
        with tempfile.TemporaryDirectory() as directory:
            images, labels = write_idx(directory, samples=2048)

            def train(cluster, name, batch, **more):
                job = job_file(
                    name,
                    {"layers": LAYERS},
                    {"train": {"idx": {"images": images, "labels": labels}}},
                    batch=batch,
                    stop={"steps": 2},
                    workers={"min": 1, "max": 1, "device": "gpu"},
                )
                job["spec"].update(more)
                cluster.submit(job)
                return cluster.wait(name, 120)

            def refused(cluster, pattern):
                self.assertEqual(train(cluster, "large", batch), 3)
                status = cluster.describe("large")
                self.assertEqual(int(status["step"]), 0)
                said = re.search(pattern, status["reason"])
                self.assertIsNotNone(said, status["reason"])
                return map(float, said.groups())

            with gpu_of(1 << 20), Cluster(workers=1, worker_flags=GPU) as cluster:
                (needed,) = refused(cluster, needs + r"but 0\.9 MiB are allowed: ")

            # Slightly too small. Nine tenths of the GPU's memory are for the job.
            fits = 0.95 * needed
            with gpu_of(int(fits / 0.9 * (1 << 20))), Cluster(
                workers=1, worker_flags=GPU
            ) as cluster:
                again, allowed, activations, recomputing, smaller, smaller_needs = refused(
                    cluster,
                    needs + r"but ([\d.]+) MiB are allowed: the same batch with "
                    r"recompute\.activationBytes (\d+) would need ([\d.]+) MiB, .*; "
                    r"batch\.global (\d+) with batch\.microBatches 4 would need ([\d.]+) MiB",
                )
                self.assertEqual(again, needed)
                self.assertAlmostEqual(allowed, fits, delta=0.11)
                self.assertLessEqual(max(recomputing, smaller_needs), allowed)
                self.assertEqual(
                    train(cluster, "smaller", {"global": int(smaller), "microBatches": 4}), 0
                )
                # Needs the whole GPU again: nothing of the job before it is left there.
                self.assertEqual(
                    train(cluster, "again", batch, recompute={"activationBytes": int(activations)}),
                    0,
                )


if __name__ == "__main__":
    unittest.main()
