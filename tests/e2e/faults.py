"""Random faults of a cluster's processes, from a seed.

    faults = Faults(cluster, seed=1, jobs={"job"})
    faults.start()       # two threads: one for the shards, one for workers and the coordinator
    ...
    faults.finish()      # no new faults; returns when all is back and has two copies again

A process is killed (SIGKILL) and started again under its name, paused (SIGSTOP, SIGCONT), or, on a
cluster whose daemons have networks of their own, cut off. A shard's next fault waits until every
partition of `jobs` has two copies again; faults of workers and of the coordinator wait for nothing,
so they happen beside those of shards. While a job of `jobs` has ended, no shard gets a fault: its
values may have one copy only. Whoever has read them takes the job out. Standard library only.
"""

import random
import signal
import threading
import time
from dataclasses import dataclass

from tests.e2e.cluster import Timeout

KILL, PAUSE, CUT = "kill", "pause", "cut"
VERBS = {KILL: "kill -9", PAUSE: "SIGSTOP", CUT: "cut off"}
BACK = {KILL: "started again", PAUSE: "continued", CUT: "connected again"}
AWAY_MAX = 8.0  # seconds of a pause or a cut: below and above what makes a daemon count as lost
DOWN_MAX = 3.0  # seconds from a kill until the restart; half of the restarts come at once
OTHERS_EVERY_MAX = 12.0  # seconds from one fault of a worker or the coordinator to the next
REPLICATED_WAIT = 180  # seconds from a fault of a shard until everything has two copies again
ANSWER_WAIT = 60  # seconds until a coordinator that is back answers
POLL = 0.4  # seconds; each look at the cluster starts a few processes
END_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")


class Aborted(Exception):
    """The run was interrupted."""


@dataclass
class Fault:
    """Times are of time.monotonic()."""

    role: str
    name: str
    kind: str
    process: int  # the process that it befell
    at: float
    ended: float = 0.0  # when it was started again, continued, or connected again
    # Of a shard: when all had two copies again; of the coordinator: when it answered.
    recovered: float = 0.0
    replaced: bool = False  # of a shard: it came back as another incarnation, without its copies


def accepted(cluster, name, submit):
    """True: the job is there. A coordinator that dies may have accepted what it did not answer.
    RuntimeError: not now."""
    try:
        cluster.describe(name)
    except RuntimeError:
        submit()
    return True


def why_not_replicated(cluster, jobs, also_ended=False):
    """Why a shard must not die now; empty: all shards are ready, and each partition of `jobs`, all
    of which run, has two whole copies on them. Only with `also_ended` a job may have ended: it gets
    no new copies. RuntimeError: the coordinator does not answer."""
    ready = {
        shard["id"]: shard["incarnation"]
        for shard in cluster.get("shards")
        if shard["state"] == "ready"
    }
    if len(ready) < cluster.shards:
        return f"{len(ready)} of {cluster.shards} shards are ready"
    for job in sorted(list(jobs)):
        reply = cluster.describe_all(job)
        status = reply["status"]
        if status["state"] in END_STATES and also_ended:
            continue
        if status["state"] != "RUNNING":
            return f"job {job} is {status['state']}"
        whole, partitions = status["partitionsWhole"], status["partitions"]
        if not partitions or whole < partitions:
            return f"{whole} of {partitions} partitions of job {job} have two copies"
        for view in reply["views"]:
            for side in ("primary", "backup"):
                if ready.get(view[side]) != view[f"{side}Incarnation"]:
                    return f"job {job} has copies on a shard that was lost"
    return ""


class Faults:
    """`jobs` may change while it runs. `before_shard` is called before each fault of a shard.
    Holding `quiet` keeps shards free of faults, and all partitions replicated."""

    def __init__(self, cluster, seed, jobs, say=print, kinds=(KILL, PAUSE), before_shard=None):
        self.cluster = cluster
        self.jobs = jobs
        self.say = say
        self.kinds = kinds
        self.before_shard = before_shard or (lambda: None)
        self.faults = []
        self.over = threading.Event()  # no new faults
        self.aborted = threading.Event()  # stop waiting, too
        self.quiet = threading.Lock()
        self.failures = []  # why a thread ended early
        self._of_shards = random.Random(f"{seed} shards")
        self._of_others = random.Random(f"{seed} others")
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,))
            for run in (self._disturb_shards, self._disturb_others)
        ]

    def start(self):
        for thread in self._threads:
            thread.start()

    def finish(self):
        self.over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def abort(self):
        self.aborted.set()
        self.finish()

    def away(self, name):
        """Whether a fault has that process at the moment."""
        return any(fault.name == name and not fault.ended for fault in list(self.faults))

    # ---- One fault ------------------------------------------------------------------------------

    def strike(self, role, name, kind, seconds):
        """The fault, `seconds` long (less if the faults are over before that)."""
        process = self.cluster.processes[name]
        if process.poll() is not None:
            raise AssertionError(f"{name} has ended by itself, with status {process.returncode}")
        self.say(f"{VERBS[kind]} {name} (process {process.pid}) for {seconds:.1f} s")
        fault = Fault(role, name, kind, process.pid, time.monotonic())
        self.faults.append(fault)
        if kind == CUT:
            self.cluster.cut(name)
        else:
            self.cluster.kill(name, signal.SIGKILL if kind == KILL else signal.SIGSTOP)
        self.over.wait(seconds)
        fault.ended = time.monotonic()
        if kind == CUT:
            self.cluster.connect(name)
        elif kind == PAUSE:
            self.cluster.kill(name, signal.SIGCONT)
        elif role == "coordinator":
            self.cluster.start_coordinator()
        elif role == "shard":
            self.cluster.start_shard(name)
        else:
            self.cluster.start_worker(name)
        self.say(f"{name} {BACK[kind]}")
        return fault

    def incarnation(self, shard):
        """Of the newest process of that name that has registered."""
        newest = self.wait(lambda: self._newest(shard), ANSWER_WAIT, f"{shard} to be known")
        return newest["incarnation"]

    def wait_recovered(self, fault, before):
        """After the fault of a shard that was the incarnation `before`: until all shards are ready
        and all that trains has two copies."""
        self._wait_for_copies(
            lambda: self._why_not_recovered(fault, before), f"after {fault.kind} of {fault.name}"
        )
        fault.recovered = time.monotonic()
        fault.replaced = self.incarnation(fault.name) != before
        self.say(f"everything has two copies, {fault.recovered - fault.at:.1f} s after the fault")

    def wait_replicated(self):
        """As a shard's next fault does, but ended jobs are no reason to wait."""
        self._wait_for_copies(
            lambda: why_not_replicated(self.cluster, self.jobs, also_ended=True), "at a start"
        )

    def _wait_for_copies(self, why_not, when):
        def check():
            if reason := why_not():
                raise RuntimeError(reason)
            return True

        self.wait(check, REPLICATED_WAIT, f"two copies of everything {when}")

    def wait(self, condition, timeout, what, every=POLL):
        """Polls `condition` until it returns something else than None. A RuntimeError, as when the
        coordinator does not answer, is no end before the timeout, which tells the last one."""
        deadline = time.monotonic() + timeout
        while not self.aborted.is_set():
            why = ""
            try:
                value = condition()
                if value is not None:
                    return value
            except RuntimeError as error:
                why = f": {error}"
            if time.monotonic() > deadline:
                raise Timeout(f"waited {timeout} s for {what}{why}")
            self.aborted.wait(every)
        raise Aborted(what)

    # ---- The threads ----------------------------------------------------------------------------

    def _guarded(self, run):
        try:
            run()
        except Aborted:
            pass
        except Exception as error:  # told by the main thread
            self.failures.append(f"{type(error).__name__}: {error}")
            self.over.set()

    def _disturb_shards(self):
        source = self._of_shards
        while not self.over.wait(source.uniform(0.1, 1.0)):
            with self.quiet:
                name = f"shard-{source.randrange(self.cluster.shards)}"
                before = self.incarnation(name)
                self.before_shard()
                self._wait_for_copies(
                    lambda: why_not_replicated(self.cluster, self.jobs), "before a fault"
                )
                if self.over.is_set():
                    return
                fault = self.strike("shard", name, *self._draw(source, kill_share=0.8))
                self.wait_recovered(fault, before)

    def _disturb_others(self):
        source = self._of_others
        while not self.over.wait(source.uniform(1.0, OTHERS_EVERY_MAX)):
            if source.random() < 0.25:
                self._disturb_coordinator(*self._draw(source, kill_share=0.6))
            else:
                name = f"worker-{source.randrange(self.cluster.workers)}"
                self.strike("worker", name, *self._draw(source, kill_share=0.6))

    def _disturb_coordinator(self, kind, seconds):
        fault = self.strike("coordinator", "coordinator", kind, seconds)
        self.wait(
            lambda: self.cluster.cli("get", "jobs").returncode == 0 or None,
            ANSWER_WAIT,
            f"the coordinator to answer after {kind}",
        )
        fault.recovered = time.monotonic()

    def _draw(self, source, kill_share):
        """A kind of fault and how long it is."""
        if source.random() < kill_share:
            return KILL, source.choice([0.0, source.uniform(0.0, DOWN_MAX)])
        others = [kind for kind in self.kinds if kind != KILL]
        return source.choice(others), source.uniform(0.2, AWAY_MAX)

    # ---- Looking --------------------------------------------------------------------------------

    def _newest(self, name):
        """The newest shard of that name; None: the coordinator knows none yet."""
        found = [shard for shard in self.cluster.get("shards") if shard["name"] == name]
        return max(found, key=lambda shard: shard["incarnation"], default=None)

    def _why_not_recovered(self, fault, before):
        """As why_not_replicated. That the coordinator has not noticed the fault yet is no recovery:
        a killed shard must be back as another incarnation, and any other must have reported."""
        asked = time.monotonic()
        shard = self._newest(fault.name)
        if shard is None:
            return f"{fault.name} is unknown"
        if fault.kind == KILL:
            if shard["incarnation"] == before:
                return f"{fault.name} is not back yet"
        elif shard["secondsSinceReport"] >= asked - fault.ended:
            return f"{fault.name} has not reported yet"
        return why_not_replicated(self.cluster, self.jobs, also_ended=True)
