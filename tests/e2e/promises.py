"""Checks of promises that no second attempt makes up for: exactly once, the same bits, staleness.

Other work on the machine may fail a test of real processes, which therefore gets a second attempt
(tools/test.sh). A lost update is no fault of the machine, so it raises PromiseBroken:
tools/testing/report.py finds that name in the log of the first attempt. Standard library only.
"""

import sys


class PromiseBroken(AssertionError):
    """Values are not what was trained, or a bound was exceeded. Says which and by how much, and in
    the log at once: a later case of the test may hang, and then unittest tells nothing."""

    def __init__(self, what):
        super().__init__(what)
        print(f"PromiseBroken: {what}", file=sys.stderr, flush=True)


def check(held, what):
    if not held:
        raise PromiseBroken(what)


def check_same_bits(digests):
    """Of {run: digest of its values}: all runs ended with one."""
    check(len(set(digests.values())) == 1, f"other bits: {digests}")


def check_one_digest(runs):
    """Of {digest: the runs that ended with it}: there is one."""
    check(len(runs) == 1, f"other bits: {runs}")


def check_counted(rows, times, samples):
    """Of a counter's rows: each of so many samples counted so often."""
    check(len(rows) == samples, f"{len(rows)} of {samples} samples are counted")
    check(
        min(rows) == max(rows) == times,
        f"samples were counted {min(rows)} to {max(rows)} times, not {times}: "
        f"{sum(row < times for row in rows)} too few, {sum(row > times for row in rows)} too many",
    )


def check_coverage(status):
    """Of a job's status: each slice has counted each item of the last complete epoch once."""
    counted = [int(status[name]) for name in ("coverageMin", "coverageMax", "coverageExpected")]
    check(len(set(counted)) == 1, f"updates per slice, least, most and expected: {counted}")


def check_staleness(status, bound):
    most = int(status["stalenessMax"])
    check(most <= bound, f"values were {most} clocks old, {bound} at most are promised")
