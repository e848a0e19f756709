"""From an exported model NumPy computes exactly the accuracy that `starling wait` printed.

Default: a CNN with batch norm and dropout on made-up images. --full DIGITS.csv.gz:
examples/digits_mlp.yaml on the UCI handwritten digits, whose accuracy must be at least 0.96. NumPy.
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

DIGITS = None
LEAST = 0.96  # for the digits

LAYERS = [
    {"conv2d": {"out_channels": 8, "kernel": 3, "padding": 1, "name": "conv1"}},
    {"batchnorm": {"name": "bn1"}},
    "relu",
    {"maxpool2d": {"kernel": 2}},
    {"dropout": {"rate": 0.2}},
    "flatten",
    {"linear": {"out_features": 10, "name": "fc"}},
]


class ExportAccuracy(unittest.TestCase):
    def printed(self, cluster, job):
        result = cluster.cli("wait", job, "--timeout", "300s", timeout=330)
        self.assertEqual(result.returncode, 0, result.stderr)
        return re.search(r"^test_accuracy=(\S+)$", result.stdout, re.M).group(1)

    def computed(self, cluster, job, files):
        cluster.export(job)
        result = subprocess.run(
            [
                sys.executable,
                str(ROOT / "tests/judge/evaluate_export.py"),
                str(cluster.directory / f"{job}.safetensors"),
                *files,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        return re.search(r"^test_accuracy=(\S+)$", result.stdout, re.M).group(1)

    def compare(self, cluster, job, files):
        printed, computed = self.printed(cluster, job), self.computed(cluster, job, files)
        print(f"figure: test_accuracy {printed} printed, {computed} by NumPy", flush=True)
        self.assertEqual(printed, computed)
        return float(printed)

    def test_same(self):
        if DIGITS:
            self.digits()
        else:
            self.images()

    def images(self):
        with tempfile.TemporaryDirectory() as directory, Cluster(shards=2, workers=2) as cluster:
            images, labels = write_idx(directory, samples=997)
            source = {"idx": {"images": images, "labels": labels}}
            cluster.submit(
                job_file(
                    "images",
                    {"layers": LAYERS},
                    {"train": source, "test": source, "normalize": {"mean": [0.13], "std": [0.3]}},
                    optimizer={"adam": {"learningRate": 0.001}},
                    batch={"global": 64, "microBatches": 4},
                    consistency={"ssp": {"staleness": 2}},
                    workers={"min": 2, "max": 2},
                    evaluate={"everyEpochs": 2},
                    stop={"epochs": 2},
                )
            )
            accuracy = self.compare(cluster, "images", [images, labels])
            self.assertGreater(accuracy, 0.2)  # it learned something; chance is 0.1
            self.assertLess(accuracy, 1.0)  # some errors remain, so results could differ

    def digits(self):
        os.environ["STARLING_DIGITS"] = DIGITS
        with Cluster(shards=2, workers=2) as cluster:
            result = cluster.cli("submit", "-f", str(ROOT / "examples/digits_mlp.yaml"))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertGreaterEqual(self.compare(cluster, "digits-mlp", [DIGITS]), LEAST)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--full", metavar="DIGITS", type=lambda path: str(Path(path).resolve(strict=True))
    )
    known, rest = parser.parse_known_args()
    DIGITS = known.full
    unittest.main(argv=[sys.argv[0], *rest])
