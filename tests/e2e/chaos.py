"""Random faults on real processes, and what they cost: tools/chaos.sh.

    chaos.py [--minutes M] [--seed S] [--json FILE]

One coordinator, three shards and three workers train counters (every row is checked) and MNIST,
while tests/e2e/faults.py kills, pauses and cuts off processes of all roles. As root each daemon has
a network namespace of its own, over TLS. Prints a log with times, then per role and fault how
often, how long until the first acknowledgement of a partition whose primary was gone, how long
without a backup; lost and doubled updates; accuracy; and each promise. FILE gets all of it. At the
end both copies of a partition are killed (tests/e2e/double_fault.py), which is counted apart.
Exit status: 0 all promises held; 1 not; 130 interrupted. The jobs that run when the minutes are
over train to their end, so the run takes some minutes more.
"""

import argparse
import contextlib
import json
import signal
import sys
import threading
import time
import traceback

from tests.e2e import double_fault
from tests.e2e.applied import Applied
from tests.e2e.chaos_report import Updates, measure, promises, summarize, table
from tests.e2e.cluster import Cluster
from tests.e2e.faults import CUT, KILL, PAUSE, Faults
from tests.e2e.long_jobs import WORKER_FLAGS, Counters, Mnist, why_no_mnist
from tests.e2e.namespaces_test import NamespaceCluster, why_not

SHARDS, WORKERS = 3, 3


class Log:
    """Lines with the seconds since the start. Thread-safe."""

    def __init__(self):
        self.began = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, text):
        with self._lock:
            print(f"[{time.monotonic() - self.began:7.1f}s] {text}", flush=True)


def run(minutes, seed, log, with_mnist, with_cuts):
    """The report of a run. Main thread only."""
    kind = NamespaceCluster if with_cuts else Cluster
    with kind(shards=SHARDS, workers=WORKERS, worker_flags=WORKER_FLAGS) as cluster:
        log(f"started {', '.join(cluster.processes)}; logs: {cluster.directory}")
        kinds = (KILL, PAUSE, CUT) if with_cuts else (KILL, PAUSE)
        faults = Faults(cluster, seed, set(), log, kinds, before_shard=lambda: applied.read())
        applied = Applied(cluster, faults.away)
        jobs = [
            job(cluster, faults, log, started=applied.expect)
            for job in ([Counters, Mnist] if with_mnist else [Counters])
        ]
        parts = [*jobs, applied, faults]
        interrupted = False
        try:
            for part in parts:
                part.start()
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end and not failures(faults, jobs):
                time.sleep(0.2)
            log("no more faults; the jobs train to their end")
            faults.finish()
            for job in jobs:
                job.finish()
        except KeyboardInterrupt:
            interrupted = True
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            log("interrupted")
        finally:  # no thread may start a process once the cluster stops
            faults.aborted.set()
            for part in reversed(parts):
                part.finish()
        result = report(seed, minutes, log.began, interrupted, faults, applied, jobs)
        held = all(promise["held"] for promise in result["promises"])
        cluster.keep = not held and not interrupted
        return result


def failures(faults, jobs):
    return [text for part in (faults, *jobs) for text in part.failures]


def report(seed, minutes, began, interrupted, faults, applied, jobs):
    """What happened, as the JSON file has it."""
    updates = Updates(applied.updates)
    rows = [measure(fault, faults.faults, updates) for fault in faults.faults]
    results = [result for job in jobs for result in job.results]
    broken = failures(faults, jobs)
    if interrupted:
        broken.append("interrupted")
    for name, process in applied.cluster.processes.items():
        if process.poll() is not None:
            broken.append(f"{name} has ended by itself, with status {process.returncode}")
    if not applied.updates:
        broken.append("the shards' spans show no update of any job")
    if applied.lost_spans:
        broken.append(f"{applied.lost_spans} spans were overwritten before they were read")
    held = promises(rows, results, broken)
    for row in rows:
        for time_of in ("at", "ended", "recovered"):
            row[time_of] = round(row[time_of] - began, 3) if row[time_of] else None
    return {
        "seed": seed,
        "minutes": minutes,
        "interrupted": interrupted,
        "faults": rows,
        "summary": summarize(rows),
        "jobs": results,
        "exact_cuts": jobs[0].cuts,
        "updates_seen": len(applied.updates),
        "promises": [{"promise": what, "found": text, "held": ok} for what, text, ok in held],
    }


def add_double_fault(result, seed, log):
    try:
        found = double_fault.run(seed, log)
    except KeyboardInterrupt:
        result["interrupted"] = True
        return
    except Exception as error:  # the faults before it are told all the same
        log(traceback.format_exc())
        text = f"{type(error).__name__}: {error}"
        result["promises"].append({"promise": double_fault.PROMISE, "found": text, "held": False})
        return
    what, text, held = double_fault.promise(found)
    result["double_fault"] = found
    result["promises"].append({"promise": what, "found": text, "held": held})


def show(result):
    print("\n".join(["", *table(result["summary"]), ""]))
    for job in result["jobs"]:
        print(", ".join(f"{key} {value}" for key, value in job.items()))
    print(f"copies at an epoch's end read while jobs trained, all exact: {result['exact_cuts']}")
    for promise in result["promises"]:
        verdict = "held  " if promise["held"] else "BROKEN"
        print(f"{verdict}  {promise['promise']}: {promise['found']}")
    kills = [f for f in result["faults"] if (f["role"], f["kind"]) == ("shard", KILL)]
    broken = sum(not promise["held"] for promise in result["promises"])
    print(
        f"figure: {len(result['faults'])} faults, {len(kills)} kills of shards, seed "
        f"{result['seed']}; {broken} of {len(result['promises'])} promises broken"
    )


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(prog="tools/chaos.sh")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="also write all figures there")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a job in the background ignores SIGINT
        signal.signal(number, interrupt)
    no_cuts, no_mnist = why_not(), why_no_mnist()
    if no_cuts:
        print(f"NOT TESTED: no process is cut off from the network: {no_cuts}")
    if no_mnist:
        print(f"NOT TESTED: MNIST does not train: {no_mnist}")
    log = Log()
    log(f"{options.minutes:g} minutes of faults, seed {options.seed}")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(options.json, "w")) if options.json else None
        result = run(options.minutes, options.seed, log, not no_mnist, not no_cuts)
        if not result["interrupted"]:
            add_double_fault(result, options.seed, log)
        result["not_tested"] = [text for text in (no_cuts, no_mnist) if text]
        if file:
            json.dump(result, file, indent=1)
    show(result)
    if result["interrupted"]:
        return 130
    return 0 if all(promise["held"] for promise in result["promises"]) else 1


if __name__ == "__main__":
    sys.exit(main())
