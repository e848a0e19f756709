"""tests/e2e/double_fault.py: both copies of a partition die, and the job goes back once."""

import unittest

from tests.e2e import chaos, double_fault
from tests.e2e.promises import check


class DoubleFault(unittest.TestCase):
    def test_a_double_fault_is_one_rollback(self):
        found = {"state": "SUCCEEDED", "restarts": 1, "lost": 0, "twice": 0}
        self.assertTrue(double_fault.promise(found)[2])
        for what, value in (("restarts", 0), ("restarts", 2), ("lost", 1), ("twice", 1)):
            self.assertFalse(double_fault.promise({**found, what: value})[2], what)
        self.assertFalse(double_fault.promise({"state": "FAILED", "restarts": 1})[2])

    def test_both_copies_of_a_partition_die(self):
        found = double_fault.run(1, chaos.Log())
        miscounted = (found.get("lost", 0), found.get("twice", 0))
        check(miscounted == (0, 0), f"updates were lost or doubled: {found}")
        self.assertTrue(double_fault.promise(found)[2], found)


if __name__ == "__main__":
    unittest.main()
