"""What a worker of a real cluster computes, step by step, agrees with the independent trainer.

One worker, one shard, BSP: the worker records 201 steps of each job, and tests/judge/trainer.py
judges loss, gradients and updates of 200 of them. Default: a few steps of one net; --full: an MLP
and a CNN with batch norm, each with SGD, momentum and AdamW, on MNIST where STARLING_DATA has it.
NumPy.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import ROOT, Cluster, job_file

FULL = False

NETS = {
    "mlp": {"builtin": "mlp", "hidden": [64, 32]},
    # No bias before a batch norm: its gradient is only rounding.
    "cnn": {
        "layers": [
            {
                "conv2d": {
                    "out_channels": 8,
                    "kernel": 3,
                    "padding": 1,
                    "bias": False,
                    "name": "conv1",
                }
            },
            {"batchnorm": {"name": "bn1"}},
            "relu",
            {"maxpool2d": {"kernel": 2}},
            {"conv2d": {"out_channels": 12, "kernel": 3, "bias": False, "name": "conv2"}},
            {"batchnorm": {"name": "bn2"}},
            "relu",
            {"avgpool2d": {"kernel": 2}},
            "flatten",
            {"linear": {"out_features": 10, "name": "fc"}},
        ]
    },
}
OPTIMIZERS = {
    "sgd": {"sgd": {"learningRate": 0.05}},
    "momentum": {
        "momentum": {
            "learningRate": {"cosine": {"peak": 0.02, "warmupSteps": 20}},
            "weightDecay": 1e-4,
        }
    },
    "adamw": {
        "adamw": {
            "learningRate": {"cosine": {"peak": 0.002, "warmupSteps": 20}},
            "weightDecay": 0.01,
        }
    },
}


def data_section(directory):
    mnist = Path(os.environ.get("STARLING_DATA", "/nonexistent")) / "mnist"
    if FULL and mnist.is_dir():
        images, labels = mnist / "train-images-idx3-ubyte.gz", mnist / "train-labels-idx1-ubyte.gz"
    else:
        images, labels = write_idx(directory, samples=1000)  # 15 full steps and one of 40 samples
    return {"train": {"idx": {"images": str(images), "labels": str(labels)}}}


class JudgeSteps(unittest.TestCase):
    def judge(self, data, net, optimizer, steps):
        """Runs a job and judges `steps` of its steps; returns the judge's output and status."""
        with tempfile.TemporaryDirectory() as record:
            flags = ["--lanes", "2", "--record-steps", record, "--record-limit", str(steps + 1)]
            with Cluster(shards=1, workers=1, worker_flags=flags) as cluster:
                cluster.submit(
                    job_file(
                        "judged",
                        NETS[net],
                        data,
                        optimizer=OPTIMIZERS[optimizer],
                        batch={"global": 64, "microBatches": 4},
                        stop={"epochs": 100, "steps": steps + 1},
                    )
                )
                self.assertEqual(cluster.wait("judged", 300), 0, cluster.describe("judged"))
            result = subprocess.run(
                [sys.executable, str(ROOT / "tests/judge/trainer.py"), record],
                capture_output=True,
                text=True,
                check=False,
            )
        print(f"{net} {optimizer}\n{result.stdout}{result.stderr}", flush=True)
        self.assertIn(f"steps={steps + 1} ", result.stdout)
        return result

    def test_agrees(self):
        points = (
            [(net, optimizer) for net in NETS for optimizer in OPTIMIZERS]
            if FULL
            else [("cnn", "adamw")]
        )
        steps = 200 if FULL else 24
        worst, misses = {}, 0
        with tempfile.TemporaryDirectory() as directory:
            data = data_section(directory)
            for net, optimizer in points:
                result = self.judge(data, net, optimizer, steps)
                misses += result.returncode != 0
                for what, error in re.findall(r"^([a-z ]+): worst (\S+) at", result.stdout, re.M):
                    worst[what] = max(worst.get(what, 0.0), float(error))
        figures = ", ".join(f"{what} {error:.1e}" for what, error in worst.items())
        print(f"figure: {len(points)} jobs x {steps} steps, {misses} missed: {figures}", flush=True)
        self.assertEqual(misses, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    known, rest = parser.parse_known_args()
    FULL = known.full
    unittest.main(argv=[sys.argv[0], *rest])
