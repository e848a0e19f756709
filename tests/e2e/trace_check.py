"""Checks a trace of `starling trace`: the file, not its writer. Standard library only.

    trace_check.py TRACE.json

* Perfetto can read it: events have the fields that their phase needs, processes and threads have
  names.
* On each thread spans nest: two are disjoint, or one contains the other. A thread has one row: a
  second one, "lane 0 (2)", is where `starling trace` puts what did not nest. Only pushes and pulls
  may overlap.
* Every push of a worker has its apply on a shard, by flow, and an arrow that ends there.
* Cause comes before effect: no apply begins more than 1 ms before its push.
"""

import json
import re
import sys
from collections import defaultdict

SLACK_MICROS = 1000
SEVERAL_ROWS = ("push under way", "pull under way")


class Trace:
    """A trace's events by kind."""

    def __init__(self, document):
        self.events = document["traceEvents"]
        self.about = document.get("otherData", {})
        self.spans = [event for event in self.events if event["ph"] == "X"]
        self.names = {
            (event["name"], event["pid"], event["tid"]): event["args"].get("name")
            for event in self.events
            if event["ph"] == "M"
        }

    def process(self, event):
        return self.names.get(("process_name", event["pid"], 0), "")

    def of(self, category, role):
        return [
            span
            for span in self.spans
            if span["cat"] == category and self.process(span).startswith(role)
        ]

    @property
    def pushes(self):
        return [span for span in self.of("push", "worker ") if "flow" in span["args"]]

    @property
    def applies(self):
        """Without those of backups, to which no push came."""
        return [span for span in self.of("apply", "shard ") if "flow" in span["args"]]


def check_form(trace):
    """Violations of the format."""
    needs = {
        "X": ("name", "cat", "ts", "dur", "pid", "tid"),
        "M": ("name", "pid", "args"),
        "s": ("name", "cat", "id", "ts", "pid", "tid"),
        "f": ("name", "cat", "id", "ts", "pid", "tid", "bp"),
    }
    faults = []
    for event in trace.events:
        if event["ph"] not in needs:
            faults.append(f"an event of phase {event['ph']}")
            continue
        faults += [
            f"an event of phase {event['ph']} without {field}: {event}"
            for field in needs[event["ph"]]
            if field not in event
        ]
        faults += [
            f"{field} of {event['name']} is {event[field]}"
            for field in ("ts", "dur")
            if field in event and not (isinstance(event[field], int) and event[field] >= 0)
        ]
    for pid, tid in {(span["pid"], span["tid"]) for span in trace.spans}:
        for what, thread in (("process_name", 0), ("thread_name", tid)):
            if not trace.names.get((what, pid, thread)):
                faults.append(f"no {what} for process {pid}, thread {thread}")
    return faults


def check_nesting(trace):
    """Spans of one thread that overlap without nesting."""
    threads = defaultdict(list)
    for span in trace.spans:
        threads[span["pid"], span["tid"]].append(span)
    faults = []
    for thread, spans in threads.items():
        spans.sort(key=lambda span: (span["ts"], -span["dur"]))
        open_ends = []
        for span in spans:
            while open_ends and open_ends[-1] <= span["ts"]:
                open_ends.pop()
            end = span["ts"] + span["dur"]
            if open_ends and end > open_ends[-1]:
                faults.append(
                    f"{span['name']} at {span['ts']} on {thread} ends behind the span that it "
                    "began in"
                )
                continue
            open_ends.append(end)
    return faults


def check_rows(trace):
    """Extra rows of a thread: their spans overlap those of its first row."""
    faults = []
    for (what, pid, _), row in trace.names.items():
        more = re.fullmatch(r"(.*) \(\d+\)", row or "") if what == "thread_name" else None
        if more and more[1] not in SEVERAL_ROWS:
            process = trace.names.get(("process_name", pid, 0))
            faults.append(f"row {row} of {process}: spans do not nest")
    return faults


def check_flows(trace, slack):
    """Pushes without an apply, arrows that do not join them, and effects before their causes."""
    applies = {span["args"]["flow"]: span for span in trace.applies}
    at = lambda event: (event["pid"], event["tid"], event["ts"])
    begins = {event["id"]: event for event in trace.events if event["ph"] == "s"}
    arrows = set()
    faults = []
    for event in trace.events:
        if event["ph"] != "f":
            continue
        begin = begins.pop(event["id"], None)
        if begin is None:
            faults.append(f"arrow {event['id']} ends, and begins nowhere")
        else:
            arrows.add((at(begin), at(event)))
    faults += [f"arrow {number} begins, and ends nowhere" for number in begins]
    if not trace.pushes:
        faults.append("no push at all")
    for push in trace.pushes:
        apply = applies.get(push["args"]["flow"])
        if apply is None:
            faults.append(f"{push['name']} at {push['ts']} of {trace.process(push)} has no apply")
            continue
        if apply["args"]["slice"] != push["args"]["slice"]:
            faults.append(f"{push['name']} is joined with {apply['name']}")
        if (at(push), at(apply)) not in arrows:
            faults.append(f"{push['name']} at {push['ts']} has no arrow to its apply")
        if apply["ts"] < push["ts"] - slack:
            faults.append(f"{apply['name']} begins {push['ts'] - apply['ts']} us before its push")
    return faults


def check(document, slack=SLACK_MICROS):
    """All faults, as sentences; empty: the trace is good."""
    trace = Trace(document)
    return check_form(trace) or check_nesting(trace) + check_rows(trace) + check_flows(trace, slack)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    faults = check(document)
    trace = Trace(document)
    for fault in faults[:50]:
        print(fault)
    print(
        f"{len(trace.spans)} spans, {len(trace.pushes)} pushes, {len(trace.applies)} applies, "
        f"{len(faults)} faults"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
