"""The safetensors package reads our writer's files, and our reader reads the package's."""

import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import safetensors
import safetensors.numpy

COPY = os.environ["COPY"]


def tensors():
    random = np.random.default_rng(1)
    out = {
        "scalar": np.array(3.5, np.float32),
        "none": np.zeros((0, 4), np.float32),
        "text \"é\"": random.standard_normal((7, 3)).astype(np.float32),
        "large": random.standard_normal((300, 301)).astype(np.float32),
        "bool": np.array([True, False, True]),
    }
    for name in ("uint8 int8 int16 uint16 float16 int32 uint32 float64 int64 uint64").split():
        out[name] = (random.standard_normal(5) * 50).astype(name)
    return out


class RealPackageTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.theirs = os.path.join(folder.name, "theirs.safetensors")
        self.ours = os.path.join(folder.name, "ours.safetensors")

    def copy(self):
        subprocess.run([COPY, self.theirs, self.ours], check=True)

    def test_both_ways(self):
        expected = tensors()
        safetensors.numpy.save_file(expected, self.theirs, metadata={"model": '{"é": 1}'})
        self.copy()
        found = safetensors.numpy.load_file(self.ours)
        self.assertEqual(found.keys(), expected.keys())
        for name, value in expected.items():
            self.assertEqual(found[name].dtype, value.dtype)
            np.testing.assert_array_equal(found[name], value)
        with safetensors.safe_open(self.ours, "numpy") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "model": '{"é": 1}'})

    def test_empty(self):
        safetensors.numpy.save_file({}, self.theirs)
        self.copy()
        self.assertEqual(safetensors.numpy.load_file(self.ours), {})

    def test_both_refuse_a_truncated_file(self):
        safetensors.numpy.save_file(tensors(), self.theirs)
        with open(self.theirs, "r+b") as file:
            file.truncate(os.path.getsize(self.theirs) - 1)
        with self.assertRaises(safetensors.SafetensorError):
            safetensors.numpy.load_file(self.theirs)
        result = subprocess.run(
            [COPY, self.theirs, self.ours], stderr=subprocess.PIPE, text=True, check=False
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("truncated", result.stderr)
        self.assertFalse(os.path.exists(self.ours))


if __name__ == "__main__":
    COPY = os.path.abspath(COPY)
    sys.exit(not unittest.main(exit=False, verbosity=0).result.wasSuccessful())
