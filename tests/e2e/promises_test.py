"""tests/e2e/promises.py on literals: what holds passes, and each way to break it is told."""

import unittest

from tests.e2e import promises
from tests.e2e.promises import PromiseBroken

COVERED = {"coverageMin": 5, "coverageMax": 5, "coverageExpected": 5}


class Promises(unittest.TestCase):
    def broken(self, words, check, *arguments):
        with self.assertRaisesRegex(PromiseBroken, words):
            check(*arguments)

    def test_counts(self):
        promises.check_counted((2.0, 2.0), 2, 2)
        self.broken("1 of 2 samples", promises.check_counted, (2.0,), 2, 2)
        self.broken("1 too few, 0 too many", promises.check_counted, (1.0, 2.0), 2, 2)
        self.broken("0 too few, 1 too many", promises.check_counted, (2.0, 3.0), 2, 2)
        self.broken("2 too few", promises.check_counted, (1.0, 1.0), 2, 2)

    def test_bits(self):
        promises.check_same_bits({"alone": "aa", "killed": "aa"})
        self.broken("killed.*ab", promises.check_same_bits, {"alone": "aa", "killed": "ab"})
        promises.check_one_digest({"aa": ["alone", "killed"]})
        self.broken("ab", promises.check_one_digest, {"aa": ["alone"], "ab": ["killed"]})

    def test_coverage(self):
        promises.check_coverage(COVERED)
        for what in COVERED:
            self.broken("4", promises.check_coverage, {**COVERED, what: 4})

    def test_staleness(self):
        promises.check_staleness({"stalenessMax": 2}, 2)
        self.broken("3 clocks", promises.check_staleness, {"stalenessMax": 3}, 2)


if __name__ == "__main__":
    unittest.main()
