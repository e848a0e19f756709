"""When each slice of each job was updated, and on which shard: from the spans that shards record.

A shard records a span for each update that took effect, `apply slice S` on the primary and `repeat
slice S` on the backup, with a number that tells job, slice, epoch and item (common/trace/flow.h).
A primary acknowledges a contribution when its update has become certain, which is just before it
takes effect. So the first update of a slice on another shard after the death of its primary shows
when acknowledgements went on, at the latest. All daemons run on this machine, whose monotonic
clock spans and Python share.
"""

import threading
from collections import namedtuple

MASK = (1 << 64) - 1
READ_EVERY = 2.0  # seconds; a shard keeps its last 32,768 spans

Update = namedtuple("Update", "time job slice shard process")


def flow_of(uid, era, slice_id, epoch, item):
    """FlowOf of common/trace/flow.h."""
    value = 0
    for field in (uid, era, slice_id, epoch, item):
        value = (value + field + 0x9E3779B97F4A7C15) & MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
        value ^= value >> 31
    return value or 1


class Applied:
    """Reads all shards every READ_EVERY seconds between start() and finish(), and when asked.
    Thread-safe."""

    def __init__(self, cluster, away):
        self.cluster = cluster
        self.away = away  # whether a shard cannot answer now, by name
        self.updates = []
        self.lost_spans = 0  # overwritten before they were read
        self._flows = {}  # number -> (job, slice)
        self._cursors = {}  # of new_spans
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def expect(self, status, items):
        """Updates of this job, by its status, count from now on: one per slice and item."""
        job, uid, era = status["name"], status["uid"], status["era"]
        flows = {
            flow_of(uid, era, slice_id, epoch, item): (job, slice_id)
            for slice_id in range(status["partitions"])
            for epoch in range(status["epochs"])
            for item in range(items)
        }
        with self._lock:
            self._flows.update(flows)

    def start(self):
        self._thread.start()

    def finish(self):
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.updates.sort()

    def read(self):
        """Reads what is new on all shards that answer."""
        with self._lock:
            try:
                spans, dropped = self.cluster.new_spans(self._cursors, self.away)
            except RuntimeError:
                return  # the coordinator is away; the shards keep their spans for a while
            self.lost_spans += dropped
            for shard, span in spans:
                known = span["category"] == "apply" and self._flows.get(span["flow"])
                if known:
                    process = self.cluster.processes[shard].pid
                    self.updates.append(Update(span["end_us"] / 1e6, *known, shard, process))

    def _run(self):
        while not self._over.wait(READ_EVERY):
            self.read()
