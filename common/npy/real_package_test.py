"""NumPy reads our writer's files, and our reader reads NumPy's."""

import os
import subprocess
import tempfile
import unittest

import numpy as np
from numpy.lib import format as npy_format

COPY = os.environ["COPY"]


class RealPackageTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.theirs = os.path.join(folder.name, "theirs.npy")
        self.ours = os.path.join(folder.name, "ours.npy")

    def copy(self):
        return subprocess.run(
            [COPY, self.theirs, self.ours], capture_output=True, text=True, check=False
        )

    def test_both_ways(self):
        random = np.random.default_rng(1)
        for dtype in (np.float32, np.float64, np.int32, np.int64, np.uint8):
            for shape in ((), (0,), (7,), (3, 4), (2, 0, 5), (2, 3, 4, 5)):
                array = np.asarray(random.standard_normal(shape) * 100).astype(dtype)
                np.save(self.theirs, array)
                result = self.copy()
                self.assertEqual(result.returncode, 0, result.stderr)
                back = np.load(self.ours)
                self.assertEqual((back.dtype, back.shape), (array.dtype, array.shape))
                np.testing.assert_array_equal(back, array)

    def test_version_2(self):
        array = np.arange(12, dtype=np.int32).reshape(3, 4)
        with open(self.theirs, "wb") as file:
            npy_format.write_array(file, array, version=(2, 0))
        self.assertEqual(self.copy().returncode, 0)
        np.testing.assert_array_equal(np.load(self.ours), array)

    def test_refused(self):
        square = np.ones((3, 4), np.float32)
        for array, word in (
            (np.asfortranarray(square), "Fortran"),
            (square.astype(">f4"), ">f4"),
            (square.astype(np.float16), "<f2"),
            (square > 0, "|b1"),
            (np.array(["a"]), "<U1"),
        ):
            np.save(self.theirs, array)
            result = self.copy()
            self.assertEqual(result.returncode, 1)
            self.assertIn(word, result.stderr)
        np.savez(self.theirs[:-4], square)
        os.replace(self.theirs[:-4] + ".npz", self.theirs)
        self.assertIn("numpy.save", self.copy().stderr)


if __name__ == "__main__":
    unittest.main()
