"""The tensorboard package reads our writer's files."""

import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

WRITE = os.environ["WRITE"]


class RealPackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([WRITE, folder], check=True)
            cls.events = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0})
            cls.events.Reload()

    def scalars(self, tag):
        return {event.step: event.value for event in self.events.Scalars(tag)}

    def test_scalars_and_a_session_that_was_resumed(self):
        steps = (10, 20, 30, 40)
        losses = (1.0, 1.0, 0.1, 0.1)  # the second session counts from step 30 on
        expected = {
            "loss/train": losses,
            "accuracy/train": [1 - loss / 8 for loss in losses],
            "learning_rate": [0.001 * step for step in steps],
            "throughput/samples_per_second": [100 * step for step in steps],
            "throughput/hidden_share": [0.5] * 4,
            "staleness/max": [2] * 4,
        }
        for tag, values in expected.items():
            found = self.scalars(tag)
            self.assertEqual(tuple(found), steps, tag)
            for value, wanted in zip(found.values(), values):
                self.assertEqual(value, np.float32(wanted), tag)
        self.assertEqual(self.scalars("loss/test"), {10: np.float32(0.3), 40: np.float32(0.3)})
        self.assertEqual(self.scalars("accuracy/test"), {10: np.float32(0.9), 40: np.float32(0.9)})
        self.assertEqual(
            set(self.events.Tags()["scalars"]), {*expected, "loss/test", "accuracy/test"}
        )
        self.assertEqual(self.events.Scalars("loss/train")[0].wall_time, 1010)

    def test_histogram(self):
        events = self.events.Histograms("staleness")
        self.assertEqual([event.step for event in events], [10, 20, 30, 40])
        histogram = events[2].histogram_value
        self.assertEqual((histogram.min, histogram.max, histogram.num), (0, 2, 35))
        self.assertEqual((histogram.sum, histogram.sum_squares), (60, 120))
        self.assertEqual(list(histogram.bucket_limit), [0.5, 1.5, 2.5])
        self.assertEqual(list(histogram.bucket), [5, 0, 30])


if __name__ == "__main__":
    WRITE = os.path.abspath(WRITE)
    sys.exit(not unittest.main(exit=False, verbosity=0).result.wasSuccessful())
