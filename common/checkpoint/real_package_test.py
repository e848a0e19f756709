"""The safetensors package reads the files of a checkpoint."""

import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import safetensors
import safetensors.numpy

WRITE = os.environ["WRITE"]
SHAPES = {"conv.weight": 16, "conv@2": 2, "norm.mean": 5, "table": 3}
PARTS = ["", ".slot0"]


def value(parameter, part, index):
    """As TinyValue of testing/tiny_checkpoint.cc."""
    return 10000 * 27 + 100 * len(parameter) + 20 * part + index + 0.25


class RealPackageTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        written = subprocess.run(
            [WRITE, folder.name], check=True, stdout=subprocess.PIPE, text=True
        )
        self.id = written.stdout.strip()
        self.checkpoint = os.path.join(folder.name, self.id)

    def files(self):
        names = sorted(os.listdir(self.checkpoint))
        self.assertEqual(names.pop(0), "manifest.json")
        self.assertEqual(
            names, ["shard-0000000001.safetensors", "shard-0000000002.safetensors"]
        )
        return [os.path.join(self.checkpoint, name) for name in names]

    def test_every_value_is_in_one_file(self):
        found = {}
        for path in self.files():
            for name, values in safetensors.numpy.load_file(path).items():
                parameter, begin = name.rsplit("@", 1)
                begin, _, part = begin.partition(".")
                self.assertEqual(values.dtype, np.float32)
                for i, one in enumerate(values):
                    key = (parameter, "." + part if part else "", int(begin) + i)
                    self.assertNotIn(key, found)
                    found[key] = float(one)
        expected = {}
        for parameter, elements in SHAPES.items():
            for part, suffix in enumerate(PARTS if parameter.startswith("conv") else PARTS[:1]):
                for i in range(elements):
                    expected[(parameter, suffix, i)] = value(parameter, part, i)
        self.assertEqual(found, expected)

    def test_the_metadata_says_of_what(self):
        for path in self.files():
            with safetensors.safe_open(path, "numpy") as file:
                metadata = file.metadata()
                self.assertEqual(len(metadata.pop("digests")), 16 * len(file.keys()))
            self.assertEqual(
                metadata,
                {"format": "pt", "starling": "checkpoint/1", "id": self.id, "step": "27"},
            )


if __name__ == "__main__":
    WRITE = os.path.abspath(WRITE)
    sys.exit(not unittest.main(exit=False, verbosity=0).result.wasSuccessful())
