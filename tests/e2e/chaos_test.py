"""tests/e2e/chaos.py: a short run on real processes, and the report on literals."""

import unittest

from tests.e2e import chaos
from tests.e2e.applied import Update
from tests.e2e.chaos_report import Updates, measure, percentile, promises, summarize, table
from tests.e2e.faults import CUT, KILL, PAUSE, Fault
from tests.e2e.promises import check

# Processes of shards.
OLD, OTHER, NEW = 10, 11, 12


def updates(*points):
    """(time, slice, process): of one job."""
    return Updates(
        sorted(Update(time, "job", slice_id, "", process) for time, slice_id, process in points)
    )


def shard_fault(kind, at=100.0, ended=100.0, recovered=105.0, replaced=True):
    return Fault("shard", "shard-0", kind, OLD, at, ended, recovered, replaced)


def counter(**more):
    job = {"job": "counter-0", "state": "SUCCEEDED", "updates": 100, "lost": 0, "twice": 0}
    return {**job, **more}


def broken(rows, jobs, failures=()):
    return [what for what, _, held in promises(rows, jobs, list(failures)) if not held]


class Report(unittest.TestCase):
    def test_the_first_update_of_a_slice_that_the_dead_shard_led(self):
        seen = updates(
            (99.0, 0, OLD), (99.1, 1, OTHER), (100.1, 1, OTHER), (102.5, 0, OTHER), (103.0, 0, NEW)
        )
        self.assertEqual(seen.first_after(shard_fault(KILL)), 2.5)
        # It led nothing, or nothing that was updated later.
        for points in ([(99.0, 1, OTHER), (101.0, 1, OTHER)], [(99.0, 0, OLD)]):
            self.assertIsNone(updates(*points).first_after(shard_fault(KILL)))

    def test_a_shard_that_was_paused_may_go_on_itself(self):
        seen = updates((99.0, 0, OLD), (101.5, 0, OLD))
        self.assertEqual(seen.first_after(shard_fault(PAUSE, ended=101.0)), 1.5)

    def test_what_a_shard_that_is_cut_off_still_applies_does_not_count(self):
        seen = updates((99.0, 0, OLD), (100.01, 0, OLD), (104.0, 0, OTHER))
        self.assertEqual(seen.first_after(shard_fault(CUT, ended=106.0)), 4.0)
        seen = updates((99.0, 0, OLD), (100.01, 0, OLD), (101.5, 0, OLD))
        self.assertEqual(seen.first_after(shard_fault(CUT, ended=101.0)), 1.5)

    def test_pauses_reach_to_both_ends(self):
        seen = updates((100.0, 0, OLD), (101.0, 0, OLD), (103.0, 0, OLD))
        self.assertEqual(seen.longest_pause(100.5, 103.2), 2.0)
        self.assertEqual(seen.longest_pause(101.5, 102.5), 1.0)
        self.assertEqual(seen.count(100.5, 103.2), 2)

    def test_percentiles_are_nearest_ranks(self):
        self.assertEqual(percentile(range(1, 101), 0.95), 95)
        self.assertEqual(percentile([3.0, 1.0], 0.5), 1.0)
        self.assertIsNone(percentile([], 0.5))

    def test_time_without_backup_counts_where_copies_were_lost(self):
        seen = updates((99.0, 0, OLD), (101.0, 0, OTHER))
        rows = [
            measure(fault, [], seen)
            for fault in (shard_fault(KILL), shard_fault(PAUSE, ended=101.0, replaced=False))
        ]
        self.assertEqual([row["without_backup"] for row in rows], [5.0, 0.0])

    def test_counts_states_and_accuracy_are_judged(self):
        self.assertEqual(broken([], [counter()]), [])
        self.assertEqual(broken([], [counter(lost=1)]), ["no acknowledged update is lost"])
        twice = broken([], [counter(twice=1)])
        self.assertEqual(twice, ["no acknowledged update is applied twice"])
        self.assertIn("no job fails", broken([], [counter(), {"job": "m", "state": "FAILED"}]))
        self.assertIn("no job fails", broken([], []))
        mnist = {"job": "mnist-0", "state": "SUCCEEDED", "accuracy": 0.9899}
        self.assertEqual(broken([], [counter(), mnist]), ["MNIST ends at 0.990"])
        self.assertEqual(broken([], [counter()], ["why"]), ["the run came to its end"])

    def test_times_of_a_shards_faults_are_judged(self):
        def judged(kind, ack, ended=100.0, others=()):
            seen = updates((99.0, 0, OLD), (100.0 + ack, 0, OTHER))
            fault = shard_fault(kind, ended=ended, recovered=100.0 + ack + 1)
            return broken([measure(fault, others, seen)], [counter()])

        self.assertEqual(judged(KILL, 0.9), [])
        self.assertEqual(len(judged(KILL, 1.1)), 1)
        # What is slow beside another fault is not judged, except that of a worker long ago.
        away = Fault("coordinator", "coordinator", KILL, 1, 100.5, 100.6, 102.0)
        self.assertEqual(judged(KILL, 1.1, others=[away]), [])
        worker = Fault("worker", "worker-0", KILL, 2, 95.5, 96.0)
        self.assertEqual(judged(KILL, 1.1, others=[worker]), [])
        worker.ended = 94.9
        self.assertEqual(len(judged(KILL, 1.1, others=[worker])), 1)
        self.assertEqual(judged(PAUSE, 3.9, ended=102.0), [])
        self.assertEqual(len(judged(PAUSE, 4.1, ended=102.0)), 1)
        self.assertEqual(judged(CUT, 3.9, ended=120.0), [])
        self.assertEqual(len(judged(CUT, 4.1, ended=120.0)), 1)

    def test_the_coordinators_absence_is_judged(self):
        def judged(answered, seen):
            fault = Fault("coordinator", "coordinator", KILL, 1, 100.0, 101.0, 101.0 + answered)
            return broken([measure(fault, [], seen)], [counter()])

        busy = updates(*((100.0 + 0.1 * i, 0, OLD) for i in range(100)))
        self.assertEqual(judged(4.9, busy), [])
        self.assertEqual(len(judged(5.1, busy)), 1)
        self.assertEqual(judged(0.5, updates()), ["training does not stop for the coordinator"])

    def test_the_table_has_a_row_per_role_and_fault(self):
        seen = updates((99.0, 0, OLD), (101.0, 0, OTHER))
        worker = Fault("worker", "worker-0", PAUSE, 20, 100.0, 101.0)
        rows = [measure(fault, [], seen) for fault in (shard_fault(KILL), worker)]
        lines = table(summarize(rows))
        self.assertRegex("\n".join(lines), r"(?m)^shard +kill +1 +1\.00 / 1\.00 / 1\.00 +5\.00 ")
        self.assertRegex("\n".join(lines), r"(?m)^worker +pause +1 +- +- +- ")


class OnRealProcesses(unittest.TestCase):
    def test_counters_stay_exact(self):
        result = chaos.run(
            minutes=0.4, seed=1, log=chaos.Log(), with_mnist=False, with_cuts=False
        )
        chaos.show(result)
        for job in result["jobs"]:
            check((job["lost"], job["twice"]) == (0, 0), f"updates were lost or doubled: {job}")
        for job in result["jobs"]:
            self.assertEqual(job["state"], "SUCCEEDED", job)
        self.assertTrue(result["promises"][0]["held"], result["promises"][0])
        shards = [fault for fault in result["faults"] if fault["role"] == "shard"]
        self.assertTrue(any(fault["first_ack"] for fault in shards), shards)


if __name__ == "__main__":
    unittest.main()
