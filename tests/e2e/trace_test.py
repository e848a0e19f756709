"""`starling trace` of a real job whose daemons' clocks differ by up to 1 s (--inject-clock-offset).

The checker (trace_check.py) finds no fault, and each clock's estimate is within the error that the
trace states for it, and within 1 ms with --full. All processes run on one machine with one
monotonic clock, so the estimates must match the injected offsets. A job that has ended is refused.
"""

import argparse
import json
import sys
import tempfile
import unittest
from pathlib import Path

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file
from tests.e2e.trace_check import Trace, check

FULL = False
STEPS = 20
OFFSETS = {"shard-0": 1.0, "shard-1": -0.35, "worker-0": 0.7, "worker-1": -1.0}  # seconds
LIMIT_MICROS = 1000


class TraceTest(unittest.TestCase):
    def record(self, cluster, folder):
        """The trace of STEPS steps of a job that runs until it is cancelled."""
        images, labels = write_idx(folder, samples=1024, size=28)
        cluster.submit(
            job_file(
                "traced",
                {"builtin": "mlp", "hidden": [1024, 1024]},
                {"train": {"idx": {"images": images, "labels": labels}}},
                batch={"global": 128, "microBatches": 2},
                workers={"min": 2, "max": 2},
                stop={"epochs": 100000},
            )
        )
        cluster.wait_progress("traced", step=5, timeout=240)
        file = Path(folder) / "trace.json"
        result = cluster.cli("trace", "traced", "--steps", str(STEPS), "-o", str(file), timeout=300)
        print(result.stderr)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(list(Path(folder).glob("trace.json*")), [file])
        return json.loads(file.read_text())

    def test_one_clock(self):
        flags = {
            name: ["--inject-clock-offset", f"{seconds}s"] for name, seconds in OFFSETS.items()
        }
        with tempfile.TemporaryDirectory() as folder, Cluster(
            shards=2, workers=2, worker_flags=["--lanes", "1"], flags_of=flags
        ) as cluster:
            document = self.record(cluster, folder)
            self.assertEqual(cluster.cli("cancel", "traced").returncode, 0)
            ended = cluster.cli("trace", "traced", "-o", str(Path(folder) / "late.json"))
            self.assertEqual(ended.returncode, 1)
            self.assertIn("has ended (CANCELLED)", ended.stderr)
            self.assertFalse((Path(folder) / "late.json").exists())
        processes = {process["name"]: process for process in document["otherData"]["processes"]}
        self.assertEqual(set(processes), set(OFFSETS))
        worst, stated = 0, 0
        for name, seconds in OFFSETS.items():
            process = processes[name]
            self.assertEqual(process["spansDropped"], 0, name)
            off = abs(process["clockOffsetMicros"] - round(seconds * 1e6))
            self.assertLessEqual(off, process["clockErrorMicros"] + 1, name)
            worst, stated = max(worst, off), max(stated, process["clockErrorMicros"])
        # Two clocks may both be off by their stated error, in opposite directions.
        faults = check(document, LIMIT_MICROS if FULL else max(LIMIT_MICROS, 2 * stated))
        self.assertEqual(faults, [])
        trace = Trace(document)
        categories = {span["cat"] for span in trace.spans}
        self.assertGreaterEqual(
            categories, {"forward", "backward", "push", "pull", "apply", "wait"}
        )
        clocks = {push["args"]["clock"] for push in trace.pushes}
        # Reports carry the job's progress ten times a second: the edges are off by the steps of
        # that time.
        self.assertGreaterEqual(len(clocks), STEPS // 2)
        print(
            f"figure: {len(trace.pushes)} pushes with their applies in {len(clocks)} steps, "
            f"{len(faults)} faults; clocks that are {min(OFFSETS.values())} to "
            f"{max(OFFSETS.values())} s off are put right within {worst / 1000:.3f} ms"
        )
        if FULL:
            self.assertLessEqual(worst, LIMIT_MICROS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    known, rest = parser.parse_known_args()
    FULL = known.full
    unittest.main(argv=[sys.argv[0], *rest])
