"""BSP gives the same bits for any number of workers and shards, and with a worker killed (G3).

A small net with convolution, batch norm, dropout and Adam, on data whose last batch is short; and
the same with LAMB, parameter groups and clipping. Default: a few points of the matrix. --full: 1 to
4 workers x 1 and 3 shards, different numbers of micro-batches in parallel, and a kill -9 on the
way.
"""

import argparse
import gzip
import random
import struct
import sys
import tempfile
import unittest
from pathlib import Path

from tests.e2e.cluster import Cluster, job_file, parameters_sha256
from tests.e2e.promises import check_same_bits

FULL = False

LAYERS = [
    {"conv2d": {"out_channels": 6, "kernel": 3, "padding": 1, "name": "conv1"}},
    {"batchnorm": {"name": "bn1"}},
    "relu",
    {"maxpool2d": {"kernel": 2}},
    {"dropout": {"rate": 0.3}},
    "flatten",
    {"linear": {"out_features": 24, "name": "fc1"}},
    "relu",
    {"linear": {"out_features": 10, "name": "fc2"}},
]

ADAM = {"adam": {"learningRate": {"cosine": {"peak": 0.003, "warmupSteps": 5}}}}
LAMB = {
    "lamb": {"learningRate": 0.01},
    "groups": [
        {"match": ["fc1.*"], "rateScale": 0.5},
        {"vectors": True, "weightDecay": 0, "trustRatio": False},
    ],
}


def write_idx(directory, samples, size=8, classes=10):
    """Images of noise around a bright spot that depends on the label; returns both paths."""
    source = random.Random(5)
    images, labels = bytearray(), bytearray()
    for _ in range(samples):
        label = source.randrange(classes)
        pixels = bytearray(source.randrange(64) for _ in range(size * size))
        pixels[label * 5 % (size * size)] = 255
        images += pixels
        labels.append(label)
    image_path, label_path = Path(directory) / "images.gz", Path(directory) / "labels"
    image_path.write_bytes(gzip.compress(struct.pack(">IIII", 0x803, samples, size, size) + images))
    label_path.write_bytes(struct.pack(">II", 0x801, samples) + labels)
    return str(image_path), str(label_path)


class BspMatrix(unittest.TestCase):
    def run_one(self, data, shards, workers, lanes, kill, optimizer=ADAM, clip=None):
        flags = {f"worker-{i}": ["--lanes", str(lane)] for i, lane in enumerate(lanes[:workers])}
        with Cluster(shards=shards, workers=workers, flags_of=flags) as cluster:
            job = job_file(
                "matrix",
                {"layers": LAYERS},
                {"train": {"idx": {"images": data[0], "labels": data[1]}}},
                optimizer=optimizer,
                batch={"global": 64, "microBatches": 8},
                workers={"min": workers, "max": workers},
                stop={"epochs": 4},
            )
            if clip:
                job["spec"]["clip"] = clip
            if kill:
                job["spec"]["workers"]["min"] = 1
            cluster.submit(job)
            if kill:
                cluster.wait_progress("matrix", step=4)
                cluster.kill(f"worker-{workers - 1}")
            self.assertEqual(cluster.wait("matrix", 240), 0, cluster.describe("matrix"))
            return parameters_sha256(cluster.export("matrix"))

    def test_one_sha256(self):
        points = (
            [
                (s, w, lanes, False)
                for s in (1, 3)
                for w in (1, 2, 3, 4)
                for lanes in ([1, 2, 1, 2],)
            ]
            if FULL
            else [(1, 1, [2], False), (3, 3, [1, 2, 1], False)]
        )
        points.append((1, 3, [2, 1, 1], True) if FULL else (2, 2, [1, 2], True))
        if FULL:
            points.append((3, 4, [1, 1, 2, 2], True))
        seen = {}
        with tempfile.TemporaryDirectory() as directory:
            data = write_idx(directory, samples=1000)  # 15 full batches and one of 40
            for shards, workers, lanes, kill in points:
                digest = self.run_one(data, shards, workers, lanes, kill)
                print(
                    f"{shards} shards {workers} workers lanes {lanes[:workers]} "
                    f"kill={kill}: {digest}",
                    flush=True,
                )
                seen[(shards, workers, kill)] = digest
        print(f"figure: {len(set(seen.values()))} SHA-256 over {len(seen)} runs")
        check_same_bits(seen)

    def test_norms_are_those_of_the_whole_step(self):
        seen = {}
        with tempfile.TemporaryDirectory() as directory:
            data = write_idx(directory, samples=1000)
            for shards, workers, clip in ((1, 1, 0.05), (2, 3, 0.05), (1, 1, 1e9)):
                seen[(shards, workers, clip)] = self.run_one(
                    data,
                    shards,
                    workers,
                    [2, 1, 1],
                    False,
                    optimizer=LAMB,
                    clip={"norm": clip, "scope": "parameter"},
                )
        unclipped = seen.pop((1, 1, 1e9))
        check_same_bits(seen)
        self.assertNotEqual(seen[(1, 1, 0.05)], unclipped)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    known, rest = parser.parse_known_args()
    FULL = known.full
    unittest.main(argv=[sys.argv[0], *rest])
