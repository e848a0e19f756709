"""Recorded spans of a real step show communication hidden behind computing.

Two shards, one worker, BSP, and a wide MLP (5.8 million parameters, 23 MB each way in a step): the
first layer's slices are pushed last and needed first. In a step the first push leaves before
backward ends, and the first forward operator starts before the last pull has arrived: the first
layer's slices overtook others. (A net whose slices are all back before backward ends, like lenet
over loopback, has nothing left to overtake.) Each push has its apply, on some shard, by flow id.
Default: at least one step shows it; --full: the median step does.
"""

import argparse
import statistics
import sys
import tempfile
import unittest
from collections import defaultdict

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file

FULL = False
STEPS = 40
WARM = 5  # the first steps, which touch memory for the first time


def by_step(spans):
    """step -> category -> spans. A pull's clock is the step that will use it."""
    steps = defaultdict(lambda: defaultdict(list))
    for span in spans:
        steps[span["clock"]][span["category"]].append(span)
    return steps


class Spans(unittest.TestCase):
    def record(self):
        """The spans of the worker and of all shards after a job of STEPS steps."""
        with tempfile.TemporaryDirectory() as directory, Cluster(
            shards=2, workers=1, worker_flags=["--lanes", "2"]
        ) as cluster:
            images, labels = write_idx(directory, samples=1024, size=28)
            cluster.submit(
                job_file(
                    "traced",
                    {"builtin": "mlp", "hidden": [2048, 2048]},
                    {"train": {"idx": {"images": images, "labels": labels}}},
                    optimizer={"adamw": {"learningRate": 0.001}},
                    batch={"global": 32, "microBatches": 2},
                    stop={"epochs": 100, "steps": STEPS},
                )
            )
            self.assertEqual(cluster.wait("traced", 240), 0, cluster.describe("traced"))
            (worker,) = (self.spans_of(cluster, daemon) for daemon in cluster.get("workers"))
            shards = [
                span for daemon in cluster.get("shards") for span in self.spans_of(cluster, daemon)
            ]
            return worker, shards

    def spans_of(self, cluster, daemon):
        reply = cluster.spans(daemon["address"])
        self.assertEqual(reply["dropped"], 0)
        return reply["spans"]

    def test_overlap(self):
        worker, shards = self.record()
        steps = by_step(worker)
        early_push, early_forward = [], []
        for number in range(WARM, STEPS):
            step = steps[number]
            first_push = min(span["begin_us"] for span in step["push"])
            backward_end = max(span["end_us"] for span in step["backward"])
            last_pull = max(span["end_us"] for span in step["pull"])
            first_forward = min(span["begin_us"] for span in step["forward"])
            early_push.append(backward_end - first_push)
            early_forward.append(last_pull - first_forward)
        for what, leads in (
            ("push before backward's end", early_push),
            ("forward before the last pull", early_forward),
        ):
            print(
                f"first {what}, us: median {statistics.median(leads):.0f}, "
                f"least {min(leads)}, most {max(leads)}, in {sum(lead > 0 for lead in leads)} of "
                f"{len(leads)} steps"
            )
        print(
            f"figure: first push {statistics.median(early_push):.0f} us before backward's end, "
            f"first forward {statistics.median(early_forward):.0f} us before the last pull "
            f"(medians of {len(early_push)} steps)",
            flush=True,
        )
        worth = statistics.median if FULL else max
        self.assertGreater(worth(early_push), 0)
        self.assertGreater(worth(early_forward), 0)
        self.check_flows(steps, shards)

    def check_flows(self, steps, shards):
        """Each push of a step is joined with exactly one apply, which does not begin before it."""
        applies = defaultdict(list)
        for span in shards:
            if span["category"] == "apply" and not span["name"].startswith("repeat"):
                applies[span["flow"]].append(span)
        pushes = [span for number in range(STEPS) for span in steps[number]["push"]]
        slices = {span["slice"] for span in pushes}
        self.assertEqual(len(pushes), STEPS * len(slices))
        self.assertEqual(len({span["flow"] for span in pushes} - {0}), len(pushes))
        for push in pushes:
            (apply,) = applies.pop(push["flow"])
            self.assertEqual((apply["slice"], apply["clock"]), (push["slice"], push["clock"]))
            # One machine, one monotonic clock; the ack follows the apply's order, not its end.
            self.assertGreaterEqual(apply["begin_us"], push["begin_us"])
        self.assertFalse(applies, "applies without a push")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    known, rest = parser.parse_known_args()
    FULL = known.full
    unittest.main(argv=[sys.argv[0], *rest])
