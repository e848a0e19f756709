"""How long a checkpoint stalls training.

    checkpoint_stall.py [--checkpoints N]

One worker and two shards train 21 million parameters, 84 MB, with momentum and two copies, under
BSP and under SSP(1). Shards record a span for each update (`starling trace`); a step is complete
with its last slice's update, and takes as long as that is after the step before. N times, the
longest step while a checkpoint is taken is measured, and then the longest in as long a time without
one; a stall is how much longer the former is than the median of the latter. Under BSP a checkpoint
waits for nothing. Under SSP training drains to the step of the checkpoint first: what is under way
is completed before the next step begins, which costs a step at most. Prints `figure: ...`; exit
status 1 if a checkpoint stalled training for more than 100 ms, or 100 ms and the drain.
"""

import argparse
import statistics
import sys
import tempfile
import time

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.checkpoint_test import check_whole, checkpoints, create
from tests.e2e.cluster import Cluster, job_file

STALL_MAX = 0.1  # seconds
LINGER = 0.5  # seconds after a checkpoint that still count as its time
WARM_UP_STEPS = 10
JOB = "stalled"
HIDDEN = [2048] * 6
POLICIES = {"bsp": {"bsp": {}}, "ssp(1)": {"ssp": {"staleness": 1}}}


class Steps:
    """When each step's last update took effect on its primary, in seconds of the monotonic
    clock."""

    def __init__(self, cluster):
        self.completed = {}  # by step
        self.lost_spans = 0
        self._cluster = cluster
        self._cursors = {}

    def read(self):
        spans, dropped = self._cluster.new_spans(self._cursors)
        self.lost_spans += dropped
        for _, span in spans:
            if span["name"].startswith("apply slice"):
                before = self.completed.get(span["clock"], 0.0)
                self.completed[span["clock"]] = max(before, span["end_us"] / 1e6)


def durations(completed, begin, end):
    """Of the steps that were under way between these two."""
    return [
        at - completed[step - 1]
        for step, at in completed.items()
        if step - 1 in completed and completed[step - 1] < end and at > begin
    ]


def summarize(completed, taken, quiet):
    """Figures in seconds of the windows in which checkpoints were taken, and the others. A hiccup
    in one of the others hides no stall."""

    def longest(windows):
        found = [durations(completed, *window) for window in windows]
        if not all(found):
            raise RuntimeError("no step ended in or behind a window: training stands still")
        return [max(window) for window in found]

    at_checkpoint, otherwise = longest(taken), longest(quiet)
    return {
        "step": statistics.median(d for window in quiet for d in durations(completed, *window)),
        "taken": max(at_checkpoint),
        "taken_median": statistics.median(at_checkpoint),
        "quiet": max(otherwise),
        "quiet_median": statistics.median(otherwise),
        "stall": max(0.0, max(at_checkpoint) - statistics.median(otherwise)),
    }


def measure(folder, policy, count):
    images, labels = write_idx(folder, samples=1000)
    job = job_file(
        JOB,
        {"builtin": "mlp", "hidden": HIDDEN},
        {"train": {"idx": {"images": images, "labels": labels}}},
        optimizer={"momentum": {"learningRate": 0.001}},
        batch={"global": 8, "microBatches": 2},
        consistency=policy,
        stop={"steps": 1_000_000},
        durability="replicated",
    )
    taken, quiet, ids = [], [], []
    with Cluster(shards=2, workers=1, checkpoints=True) as cluster:
        cluster.submit(job)
        cluster.wait_whole(JOB)
        cluster.wait_progress(JOB, step=WARM_UP_STEPS)
        steps = Steps(cluster)
        for _ in range(count):
            begin = time.monotonic()
            ids.append(create(cluster, JOB))
            time.sleep(LINGER)
            end = time.monotonic()
            taken.append((begin, end))
            time.sleep(LINGER)
            quiet.append((time.monotonic(), time.monotonic() + end - begin))
            time.sleep(end - begin + LINGER)
            steps.read()
        listed = {checkpoint["id"]: checkpoint for checkpoint in checkpoints(cluster)}
        for checkpoint in ids:
            check_whole(cluster, checkpoint)
        size = max(int(listed[checkpoint]["bytes"]) for checkpoint in ids)
    if steps.lost_spans > 0:
        raise RuntimeError(f"{steps.lost_spans} spans were overwritten before they were read")
    return summarize(steps.completed, taken, quiet) | {
        "seconds": statistics.median(end - begin - LINGER for begin, end in taken),
        "bytes": size,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=int, default=7, help="under each policy")
    options = parser.parse_args()
    held, said = True, []
    for name, policy in POLICIES.items():
        with tempfile.TemporaryDirectory(prefix="starling-stall-") as folder:
            found = measure(folder, policy, options.checkpoints)
        drain = 0.0 if name == "bsp" else found["step"]
        held = held and found["stall"] <= STALL_MAX + drain
        print(found, flush=True)
        said.append(
            f"{name}: {options.checkpoints} checkpoints of {found['bytes'] / 1e6:.0f} MB in "
            f"{found['seconds']:.2f} s each, steps of {found['step']:.3f} s; the longest with one "
            f"{found['taken']:.3f} s, without {found['quiet_median']:.3f} s (median): stalled for "
            f"{found['stall']:.3f} s of {STALL_MAX + drain:.3f}"
        )
    print(f"figure: {'; '.join(said)}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
