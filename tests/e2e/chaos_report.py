"""What a run of tests/e2e/chaos.py shows: figures per role and fault, and which promises held.
Pure.
"""

import bisect
import math
from collections import defaultdict
from dataclasses import asdict

from tests.e2e.faults import CUT, KILL, PAUSE

WORKER_DETECTION = 5.0  # seconds of silence: CoordinatorOptions::liveness
SHARD_DETECTION = 2.0  # the same: shard_liveness
ACK_P50_MAX, ACK_P95_MAX = 1.0, 3.0  # seconds, after kill -9 of a shard
ACK_MORE_MAX = 2.0  # seconds after detection, or after the end of a shorter pause or cut
ANSWER_MAX = 5.0  # seconds from a coordinator's restart until it answers
PAUSE_MAX = 5.0  # seconds without any update beyond the coordinator's absence
ACCURACY_MIN = 0.990


def percentile(values, share):
    """The nearest rank; None: no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class Updates:
    """Updates as tests/e2e/applied.py lists them, in order of time."""

    def __init__(self, updates):
        self.times = [update.time for update in updates]
        self.of_slice = defaultdict(list)  # (job, slice) -> updates
        for update in updates:
            self.of_slice[update.job, update.slice].append(update)
        self.times_of_slice = {
            key: [update.time for update in updates] for key, updates in self.of_slice.items()
        }

    def count(self, begin, end):
        return bisect.bisect_left(self.times, end) - bisect.bisect_left(self.times, begin)

    def longest_pause(self, begin, end):
        """The longest time without an update of any job between these two."""
        inside = self.times[
            bisect.bisect_left(self.times, begin) : bisect.bisect_right(self.times, end)
        ]
        points = [begin, *inside, end]
        return max(b - a for a, b in zip(points, points[1:]))

    def first_after(self, fault):
        """Seconds from a shard's fault until the first update of a slice that it led; None: it led
        none that was updated later."""
        found = []
        for key, updates in self.of_slice.items():
            i = bisect.bisect_right(self.times_of_slice[key], fault.at)
            if i == 0 or updates[i - 1].process != fault.process:
                continue
            later = updates[i:]
            if fault.kind == CUT:  # what was on its way to the shard does not count
                later = [u for u in later if u.process != fault.process or u.time > fault.ended]
            found += [update.time - fault.at for update in later[:1]]
        return min(found, default=None)


def hindered_until(fault):
    """When a fault no longer keeps training waiting: a worker's, once others compute its part."""
    return max(fault.recovered, fault.ended + (WORKER_DETECTION if fault.role == "worker" else 0))


def beside(fault, faults, end):
    """Other roles with a fault that may have kept training waiting between the fault and `end`.
    What is measured then is not the one fault's effect."""
    return sorted(
        {
            other.role
            for other in faults
            if other.role != fault.role and other.at < end and hindered_until(other) > fault.at
        }
    )


def measure(fault, faults, updates):
    """One fault's figures."""
    row = asdict(fault)
    row["seconds"] = fault.ended - fault.at
    end = hindered_until(fault)
    row["longest_pause"] = updates.longest_pause(fault.at, end)
    if fault.role == "shard":
        row["first_ack"] = updates.first_after(fault)
        if row["first_ack"] is not None:
            end = fault.at + row["first_ack"]
        # A shard that came back in time has kept its copies.
        given_up = fault.kind == KILL or fault.replaced
        row["without_backup"] = fault.recovered - fault.at if given_up else 0.0
    if fault.role == "coordinator":
        row["answered"] = fault.recovered - fault.ended
        row["updates_meanwhile"] = updates.count(fault.at, fault.recovered)
    row["beside"] = beside(fault, faults, end)
    return row


def spread(values):
    values = [value for value in values if value is not None]
    return {
        "of": len(values),
        "p50": percentile(values, 0.50),
        "p95": percentile(values, 0.95),
        "max": max(values, default=None),
    }


def summarize(rows):
    """Role and fault -> figures."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["role"], row["kind"]].append(row)
    summary = []
    for (role, kind), group in sorted(groups.items()):
        entry = {"role": role, "fault": kind, "times": len(group)}
        for figure in ("first_ack", "without_backup", "answered", "longest_pause"):
            if figure in group[0]:
                entry[figure] = spread(row[figure] for row in group)
        summary.append(entry)
    return summary


def promises(rows, jobs, failures):
    """(promise, what was found, whether it held) for each promise that the run could test."""
    found = [("the run came to its end", "; ".join(failures) or "yes", not failures)]

    def judge(what, text, held):
        found.append((what, text, held))

    bad = [f"{job['job']} is {job['state']}" for job in jobs if job["state"] != "SUCCEEDED"]
    judge("no job fails", "; ".join(bad) or f"{len(jobs)} succeeded", bool(jobs) and not bad)
    counters = [job for job in jobs if "lost" in job]
    total = sum(job["updates"] for job in counters)
    for figure, what in (("lost", "lost"), ("twice", "applied twice")):
        number = sum(job[figure] for job in counters)
        judge(
            f"no acknowledged update is {what}",
            f"{number:,} of {total:,}",
            total > 0 and number == 0,
        )
    accuracies = [job["accuracy"] for job in jobs if "accuracy" in job]
    if accuracies:
        worst = min(accuracies)
        judge(f"MNIST ends at {ACCURACY_MIN:.3f}", f"{worst:.4f}", worst >= ACCURACY_MIN)
    _judge_shards([row for row in rows if row["role"] == "shard"], judge)
    _judge_coordinator([row for row in rows if row["role"] == "coordinator"], judge)
    return found


def _judge_shards(rows, judge):
    """Where no other fault kept training waiting at the same time."""
    rows = [row for row in rows if row["first_ack"] is not None and not row["beside"]]
    kills = spread(row["first_ack"] for row in rows if row["kind"] == KILL)
    if kills["of"]:
        judge(
            f"after kill -9 of a shard its partitions acknowledge within {ACK_P50_MAX:.0f} s "
            f"(p50), {ACK_P95_MAX:.0f} s (p95)",
            f"{kills['p50']:.2f} s, {kills['p95']:.2f} s ({kills['of']} beside no other fault)",
            kills["p50"] <= ACK_P50_MAX and kills["p95"] <= ACK_P95_MAX,
        )
    late = [
        row["first_ack"] - min(row["seconds"], SHARD_DETECTION)
        for row in rows
        if row["kind"] in (PAUSE, CUT)
    ]
    if late:
        judge(
            f"after a pause or cut of a shard, {ACK_MORE_MAX:.0f} s after its end or detection",
            f"{max(late):.2f} s at most ({len(late)} beside no other fault)",
            max(late) <= ACK_MORE_MAX,
        )


def _judge_coordinator(rows, judge):
    kills = [row["answered"] for row in rows if row["kind"] == KILL]
    if kills:
        judge(
            f"a coordinator that is started again answers within {ANSWER_MAX:.0f} s",
            f"{max(kills):.2f} s at most",
            max(kills) <= ANSWER_MAX,
        )
    alone = [row for row in rows if not row["beside"]]
    if alone:
        over = max(row["longest_pause"] - row["seconds"] for row in alone)
        trained = sum(row["updates_meanwhile"] for row in alone)
        judge(
            "training does not stop for the coordinator",
            f"{trained:,} updates in {len(alone)} absences beside no other fault; the longest "
            f"pause was {max(0.0, over):.2f} s longer than the absence",
            trained > 0 and over <= PAUSE_MAX,
        )


def table(summary):
    """The summary as lines of text."""

    def cell(entry, figure):
        values = entry.get(figure)
        if not values or not values["of"]:
            return "-"
        return " / ".join(f"{values[name]:.2f}" for name in ("p50", "p95", "max"))

    columns = {
        "first_ack": "first ack",
        "without_backup": "without backup",
        "answered": "answers again",
        "longest_pause": "longest pause",
    }
    lines = [
        "seconds: p50 / p95 / max",
        f"{'role':12}{'fault':8}{'times':>6}"
        + "".join(f"{title:>22}" for title in columns.values()),
    ]
    for entry in summary:
        lines.append(
            f"{entry['role']:12}{entry['fault']:8}{entry['times']:>6}"
            + "".join(f"{cell(entry, figure):>22}" for figure in columns)
        )
    return lines
