"""Nets with branches, shared and frozen parameters and initial values from files.

Each net is computed on a real cluster by two workers and two shards, and by one of each: the same
bits (G3).
"""

import json
import struct
import tempfile
import unittest
from pathlib import Path

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, parameters_sha256
from tests.e2e.promises import check_same_bits

# A custom residual block whose second half reuses the first half's convolution.
BRANCHED = [
    {"conv2d": {"out_channels": 6, "kernel": 3, "padding": 1, "name": "stem"}},
    {"batchnorm": {"name": "norm"}},
    {"relu": {"name": "trunk"}},
    {"conv2d": {"out_channels": 6, "kernel": 3, "padding": 1, "name": "conv"}},
    {"relu": {"name": "half"}},
    {"conv2d": {"out_channels": 6, "kernel": 3, "padding": 1, "parametersOf": "conv"}},
    {"add": {"inputs": ["trunk", "conv2d5"], "name": "sum"}},
    {"concat": {"inputs": ["sum", "half"], "axis": 0}},
    "global_avgpool2d",
    {"linear": {"name": "fc"}},
]
TEXT = b"a model of text learns that the same words come again and again. " * 60


def write_text(directory):
    path = Path(directory) / "text.txt"
    path.write_bytes(TEXT)
    return str(path)


def write_safetensors(path, tensors):
    """tensors: name -> (shape, bytes), all F32."""
    header, body = {}, b""
    for name, (shape, data) in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


class Models(unittest.TestCase):
    def run_job(self, cluster, job):
        cluster.submit(job)
        name = job["metadata"]["name"]
        self.assertEqual(cluster.wait(name, 240), 0, cluster.describe(name))
        return cluster.export(name)

    def losses(self, cluster, name):
        return [epoch["trainLoss"] for epoch in cluster.describe(name)["epochsDone"]]

    def check_same_bits_and_learning(self, job):
        digests = []
        for count in (1, 2):
            job["spec"]["workers"] = {"min": count, "max": count}
            with Cluster(shards=count, workers=count) as cluster:
                digests.append(parameters_sha256(self.run_job(cluster, job)))
                losses = self.losses(cluster, job["metadata"]["name"])
        check_same_bits(dict(enumerate(digests)))
        self.assertLess(losses[-1], 0.7 * losses[0], losses)

    def test_a_branched_net_with_a_shared_convolution(self):
        with tempfile.TemporaryDirectory() as directory:
            images, labels = write_idx(directory, samples=320)
            self.check_same_bits_and_learning(
                job_file(
                    "branched",
                    {"layers": BRANCHED},
                    {"train": {"idx": {"images": images, "labels": labels}}},
                    optimizer={"adam": {"learningRate": 0.02}},
                    stop={"epochs": 8},
                )
            )

    def test_a_gpt_on_bytes(self):
        with tempfile.TemporaryDirectory() as directory:
            self.check_same_bits_and_learning(
                job_file(
                    "gpt",
                    {"builtin": "gpt2", "depth": 2, "heads": 2, "width": 16},
                    {"train": {"text": {"path": write_text(directory), "context": 16}}},
                    optimizer={"adam": {"learningRate": 0.01}},
                    stop={"epochs": 10},
                )
            )

    def test_what_is_frozen_stays_and_what_a_file_says_is_where_training_starts(self):
        with tempfile.TemporaryDirectory() as directory, Cluster(shards=2, workers=2) as cluster:
            images, labels = write_idx(directory, samples=320)
            data = {"train": {"idx": {"images": images, "labels": labels}}}
            first = self.run_job(cluster, job_file("first", {"layers": BRANCHED}, data))
            path = Path(directory) / "start.safetensors"
            write_safetensors(
                path, {name: (shape, data) for name, (_, shape, data) in first.items()}
            )
            model = {"layers": BRANCHED, "init": str(path), "freeze": ["stem.*", "norm.*"]}

            # A worker dies on the way; the job needs two to start and one to continue.
            job = job_file("second", model, data, workers={"min": 1, "max": 2}, stop={"epochs": 30})
            cluster.submit(job)
            cluster.wait_progress("second", step=5)
            cluster.kill("worker-1")
            self.assertEqual(cluster.wait("second", 240), 0, cluster.describe("second"))
            second = cluster.export("second")
            for name, tensor in second.items():
                frozen = name.startswith(("stem.", "norm."))
                self.assertEqual(tensor == first[name], frozen, name)

            # With a rate of 0 the export equals the file, bit by bit.
            del model["freeze"]
            still = job_file("still", model, data, optimizer={"sgd": {"learningRate": 1e-30}})
            for name, tensor in self.run_job(cluster, still).items():
                if "running" not in name:
                    self.assertEqual(tensor, first[name], name)

            # All mismatches are reported at once, and the job is not accepted.
            wrong = {name: (shape, data) for name, (_, shape, data) in first.items()}
            wrong["extra"] = wrong.pop("fc.bias")
            wrong["stem.weight"] = ((6, 9), wrong["stem.weight"][1])
            write_safetensors(path, wrong)
            with self.assertRaises(RuntimeError) as refused:
                cluster.submit(job_file("wrong", model, data))
            for part in (
                "in 3 tensors",
                "fc.bias: expected F32 [10], got nothing",
                "stem.weight: expected F32 [6, 1, 3, 3], got F32 [6, 9]",
                "extra: the model",
            ):
                self.assertIn(part, str(refused.exception))
            with self.assertRaises(RuntimeError) as refused:
                cluster.submit(job_file("glob", {"layers": BRANCHED, "freeze": ["stam.*"]}, data))
            self.assertIn('"stam.*" matches no parameter', str(refused.exception))

    def test_a_batch_that_does_not_fit_is_refused_before_the_first_step(self):
        flags = {"worker-0": ["--memory-bytes", str(1 << 20), "--lanes", "1"]}
        with tempfile.TemporaryDirectory() as directory, Cluster(
            shards=1, workers=1, flags_of=flags
        ) as cluster:
            images, labels = write_idx(directory, samples=1024)
            data = {"train": {"idx": {"images": images, "labels": labels}}}
            job = job_file(
                "large", {"layers": BRANCHED}, data, batch={"global": 1024, "microBatches": 4}
            )
            cluster.submit(job)
            self.assertEqual(cluster.wait("large", 120), 3)
            status = cluster.describe("large")
            self.assertEqual(int(status.get("step", 0)), 0)
            self.assertIn("batch.global 1024 in micro-batches of 256", status["reason"])
            fits = int(status["reason"].split(": batch.global ")[1].split()[0])
            job = job_file(
                "small", {"layers": BRANCHED}, data, batch={"global": fits, "microBatches": 4}
            )
            self.run_job(cluster, job)


if __name__ == "__main__":
    unittest.main()
