"""The trace checker finds each fault that it is meant to find."""

import copy
import unittest

from tests.e2e.trace_check import check


def span(name, category, ts, dur, pid, tid, **args):
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": ts,
        "dur": dur,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def name(what, pid, tid, text):
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": text}}


GOOD = {
    "traceEvents": [
        name("process_name", 1, 0, "worker w"),
        name("process_name", 2, 0, "shard s"),
        name("thread_name", 1, 1, "lane 0"),
        name("thread_name", 1, 2, "push"),
        name("thread_name", 2, 3, "owner 0"),
        span("forward", "forward", 0, 100, 1, 1),
        span("wait", "wait", 10, 20, 1, 1, slice=3),
        span("push slice 3", "push", 100, 300, 1, 2, slice=3, flow="ab"),
        span("apply slice 3", "apply", 200, 50, 2, 3, slice=3, flow="ab"),
        {"name": "push to apply", "cat": "flow", "ph": "s", "id": 1, "ts": 100, "pid": 1, "tid": 2},
        {
            "name": "push to apply",
            "cat": "flow",
            "ph": "f",
            "bp": "e",
            "id": 1,
            "ts": 200,
            "pid": 2,
            "tid": 3,
        },
    ]
}


class CheckTest(unittest.TestCase):
    def faults(self, change):
        document = copy.deepcopy(GOOD)
        change(document["traceEvents"])
        return "\n".join(check(document))

    def test_a_good_one_has_none(self):
        self.assertEqual(check(GOOD), [])

    def test_each_fault_is_found(self):
        def late_wait(events):
            events[6]["dur"] = 200

        def no_apply(events):
            events[8]["args"]["flow"] = "cd"

        def other_slice(events):
            events[8]["args"]["slice"] = 4

        def no_arrow(events):
            del events[9:]

        def half_an_arrow(events):
            del events[10]

        def headless_arrow(events):
            del events[9]

        def early(events):
            events[7]["ts"] = events[9]["ts"] = 1201

        def nameless(events):
            del events[4]

        def negative(events):
            events[5]["ts"] = -1

        def no_duration(events):
            del events[5]["dur"]

        def second_row(events):
            events[2]["args"]["name"] = "lane 0 (2)"

        def nothing(events):
            del events[7:]

        for change, says in (
            (late_wait, "wait at 10 on (1, 1) ends behind"),
            (no_apply, "has no apply"),
            (other_slice, "is joined with"),
            (no_arrow, "has no arrow"),
            (half_an_arrow, "ends nowhere"),
            (headless_arrow, "begins nowhere"),
            (early, "begins 1001 us before its push"),
            (second_row, "row lane 0 (2) of worker w: spans do not nest"),
            (nameless, "no thread_name"),
            (negative, "is -1"),
            (no_duration, "without dur"),
            (nothing, "no push at all"),
        ):
            self.assertIn(says, self.faults(change), change.__name__)

    def test_pushes_and_pulls_are_many_at_a_time(self):
        for row in ("push under way (2)", "pull under way (13)"):
            self.assertEqual(self.faults(lambda events: events[3]["args"].update(name=row)), "")

    def test_a_millisecond_is_forgiven(self):
        def early(events):
            events[7]["ts"] = events[9]["ts"] = 1200

        self.assertEqual(self.faults(early), "")


if __name__ == "__main__":
    unittest.main()
