"""The arithmetic of checkpoint_stall.py."""

import unittest

from tests.e2e.checkpoint_stall import durations, summarize

# A step takes a second, but a checkpoint keeps step 4 waiting for 0.25 s.
COMPLETED = {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 4.25, 5: 5.25, 6: 6.25, 7: 7.375}


class CheckpointStallTest(unittest.TestCase):
    def test_steps_that_lie_in_a_window_in_part_count(self):
        self.assertEqual(durations(COMPLETED, 3.0, 4.0), [1.25])
        self.assertEqual(durations(COMPLETED, 2.5, 5.0), [1.0, 1.25, 1.0])
        self.assertEqual(durations(COMPLETED, -2.0, 0.5), [1.0])

    def test_the_longest_steps_are_compared(self):
        found = summarize(COMPLETED, taken=[(3.5, 4.5), (5.5, 6.0)], quiet=[(0.2, 1.8), (6.5, 7.0)])
        self.assertEqual(found["step"], 1.0)
        self.assertEqual(found["taken"], 1.25)
        self.assertEqual(found["taken_median"], 1.125)
        self.assertEqual(found["quiet"], 1.125)
        self.assertEqual(found["quiet_median"], 1.0625)
        self.assertEqual(found["stall"], 0.1875)

    def test_a_hiccup_without_a_checkpoint_hides_no_stall(self):
        hiccup = {**COMPLETED, 8: 8.375, 9: 11.0, 10: 12.0}
        quiet = [(0.2, 1.8), (1.2, 2.8), (9.0, 10.0)]
        found = summarize(hiccup, taken=[(3.5, 4.0)], quiet=quiet)
        self.assertEqual(found["quiet"], 2.625)
        self.assertEqual(found["stall"], 0.25)

    def test_training_that_stands_still_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "stands still"):
            summarize(COMPLETED, taken=[(8.0, 9.0)], quiet=[(0.2, 1.8)])

    def test_what_is_quicker_with_a_checkpoint_is_no_stall(self):
        found = summarize(COMPLETED, taken=[(0.2, 2.8)], quiet=[(3.5, 4.5)])
        self.assertEqual(found["stall"], 0.0)


if __name__ == "__main__":
    unittest.main()
