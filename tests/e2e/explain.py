"""What `starling explain` says of jobs that are slowed down on purpose, and of healthy ones.

    explain.py [--only CAUSE] [--healthy N]

Computing is replayed as timed waits, and waits are injected into workers and shards, so the test
needs hardly any processor time. Each case's cause must be named in the first sentence, with a
figure within 10 % of the injected one. Each healthy job, whose epochs have ten steps and are all
evaluated, is explained every 5 s for half a minute and must have nothing wrong. Prints a row for
each, then `figure: ...`; exit status 1 if any misses.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, wait_until
from tests.e2e.slow_link import SlowLink, raw_rate

FORWARD, BACKWARD = 0.05, 0.1
WITHIN = 0.10
STEPS = 24  # before explain is called
AT_ONCE = 5  # healthy jobs, each on two workers of its own
ASK_EVERY, ASK_FOR = 5, 30  # seconds


def replay(times=1.0):
    return ["--lanes", "1", "--replay-compute", f"{FORWARD * times:.3f}s,{BACKWARD * times:.3f}s"]


@dataclass
class Case:
    cause: str
    figure: float
    subject: str = ""  # empty: any
    policy: dict = field(default_factory=lambda: {"bsp": {}})
    workers: int = 2
    shards: int = 1
    flags: dict = field(default_factory=dict)  # name -> flags; "worker-*": for all without an entry
    kill: str = ""  # killed after STEPS; the figure is the time since
    link: dict = field(default_factory=dict)  # of SlowLink, between workers and shard-0
    hidden: tuple = (32, 16)
    steps: int = STEPS


SLOW = 0.45  # seconds, three times the computing of a micro-batch

CASES = [
    Case(
        "slow-worker",
        2.5,
        "worker-2",
        policy={"ssp": {"staleness": 1}},
        workers=3,
        flags={"worker-2": replay(2.5)},
    ),
    Case("data-bound", SLOW, flags={"worker-*": [*replay(), "--inject-data-wait", f"{SLOW}s"]}),
    Case("apply-bound", SLOW, "shard-0", flags={"shard-0": ["--inject-apply-wait", f"{SLOW}s"]}),
    Case(
        "slow-shard",
        SLOW,
        "shard-1",
        shards=2,
        flags={"shard-1": ["--inject-apply-wait", f"{SLOW}s"]},
    ),
    Case(
        "hot-partition",
        SLOW,
        "partition 1",
        flags={"shard-0": ["--inject-apply-wait", f"{SLOW}s@1"]},
    ),
    Case("shard-queue", SLOW, "shard-0", flags={"shard-0": ["--inject-queue-wait", f"{SLOW}s"]}),
    Case(
        "push-bound",
        4 * SLOW,
        policy={"async": {}},
        flags={"worker-*": [*replay(), "--inject-push-delay", f"{4 * SLOW}s"]},
    ),
    Case(
        "staleness-wait", SLOW, flags={"worker-*": [*replay(), "--inject-push-delay", f"{SLOW}s"]}
    ),
    Case("far-link", 2 * SLOW, link={"delay": SLOW}),
    Case(
        "saturated-link", 8e6, link={"bytes_per_second": 8e6}, hidden=(3072, 1536), steps=10
    ),  # 20 MB per step
    Case(
        "missing-worker",
        0,
        "worker-2",
        policy={"ssp": {"staleness": 2}},
        workers=3,
        kill="worker-2",
    ),
]


@contextlib.contextmanager
def slowed_cluster(case):
    flags = {
        f"worker-{i}": case.flags.get(f"worker-{i}", case.flags.get("worker-*", replay()))
        for i in range(case.workers)
    }
    flags.update({name: more for name, more in case.flags.items() if name.startswith("shard")})
    if not case.link:
        with Cluster(shards=case.shards, workers=case.workers, flags_of=flags) as cluster:
            yield cluster
        return
    with SlowLink(**case.link) as link, tempfile.TemporaryDirectory() as folder:
        if rate := case.link.get("bytes_per_second"):
            reached = raw_rate(link, int(rate))
            if abs(reached / rate - 1) > 0.05:
                raise RuntimeError(
                    f"void: the link carries {reached:.3g} bytes/s, {rate:.3g} were set"
                )
        port = Path(folder) / "port"
        flags["shard-0"] = ["--advertise-address", link.address, "--port-file", str(port)]
        flags["shard-0"] += ["--shared-memory=off"]  # or tensors would pass by the link
        with Cluster(shards=1, workers=case.workers, flags_of=flags) as cluster:
            link.target = f"127.0.0.1:{int(port.read_text())}"
            yield cluster


def endless_job(name, images, labels, policy, workers, hidden=(32, 16)):
    """One micro-batch per worker and step; no evaluation; never ends."""
    micro_batches = 1 << (workers - 1).bit_length() if "bsp" in policy else 1
    return job_file(
        name,
        {"builtin": "mlp", "hidden": list(hidden)},
        {"train": {"idx": {"images": images, "labels": labels}}},
        batch={"global": 32, "microBatches": micro_batches},
        consistency=policy,
        workers={"min": workers, "max": workers},
        stop={"epochs": 100000},
        durability="none",  # a slow shard slows its own partitions alone
    )


def explain(cluster, job):
    """The reply of `starling explain` and its exit status."""
    result = cluster.cli("explain", job, "-o", "json")
    if result.returncode not in (0, 1) or not result.stdout:
        raise RuntimeError(f"explain: exit {result.returncode}: {result.stderr}")
    return json.loads(result.stdout), result.returncode


def provoke(case, images, labels):
    """The first finding about a job that the case slows down, and the figure that is expected."""
    with slowed_cluster(case) as cluster:
        cluster.submit(
            endless_job("slowed", images, labels, case.policy, case.workers, case.hidden)
        )
        cluster.wait_progress(
            "slowed", step=case.steps * (1 if "bsp" in case.policy else case.workers), timeout=240
        )
        expected = case.figure
        if case.kill:
            cluster.kill(case.kill)
            killed = time.monotonic()
            time.sleep(12)  # this time is what explain measures
        reply, status = explain(cluster, "slowed")
        if case.kill:
            expected = time.monotonic() - killed
        text = cluster.cli("explain", "slowed").stdout
    return reply, status, text, expected


def judge(case, reply, status, text, expected):
    """The mismatches; empty: none."""
    if not reply["findings"]:
        return "nothing wrong"
    first = reply["findings"][0]
    if first["cause"] != case.cause:
        return f"named {first['cause']}: {first['text']}"
    if not text.startswith(f"{case.cause}: ") or status != 1:
        return f"exit status {status}, first sentence: {text.splitlines()[0]}"
    if case.subject and first["subject"] != case.subject:
        return f"about {first['subject']}, not {case.subject}"
    if abs(first["figure"] - expected) > WITHIN * expected:
        return f"figure {first['figure']:.4g} {first['unit']}, injected {expected:.4g}"
    return ""


def run_cases(only, images, labels):
    held = worst = 0
    cases = [case for case in CASES if only in (None, case.cause)]
    for case in cases:
        reply, status, text, expected = provoke(case, images, labels)
        miss = judge(case, reply, status, text, expected)
        figure = reply["findings"][0]["figure"] if reply["findings"] else 0.0
        print(
            f"{case.cause:15} injected {expected:8.3g}  said {figure:8.3g}  {miss or 'ok'}",
            flush=True,
        )
        if miss:
            print(text, flush=True)
            continue
        held += 1
        worst = max(worst, abs(figure / expected - 1))
    return held, len(cases), worst


HEALTHY = [{"bsp": {}}, {"ssp": {"staleness": 2}}, {"async": {}}]


def healthy_job(name, train, test, policy):
    """Two workers; an epoch is all of `train`, and is evaluated."""
    job = endless_job(name, *train, policy, 2)
    job["spec"]["data"]["test"] = {"idx": {"images": test[0], "labels": test[1]}}
    job["spec"]["evaluate"] = {"everyEpochs": 1}
    return job


def complaint(cluster, name):
    """What explain complains of; empty: nothing is wrong, and it shows where the time goes."""
    reply, status = explain(cluster, name)
    if status == 0 and not reply["findings"] and len(reply["phases"]) == 6:
        text = cluster.cli("explain", name).stdout
        return "" if text.startswith("nothing wrong: ") else text
    found = "; ".join(f"{finding['cause']}: {finding['text']}" for finding in reply["findings"])
    return found or f"exit status {status}, {reply['phases']}"


def ask_often(cluster, names):
    """Each job's complaints over half a minute, with their times."""
    complaints = {name: [] for name in names}
    begin = time.monotonic()
    for after in range(0, ASK_FOR + 1, ASK_EVERY):
        time.sleep(max(0, begin + after - time.monotonic()))
        for name in names:
            if said := complaint(cluster, name):
                complaints[name].append(f"after {after} s: {said}")
    return complaints


def run_healthy(count, train, test):
    """The number of healthy jobs that explain calls healthy every time; several run at once."""
    clean = done = 0
    with slowed_cluster(Case("", 0, workers=2 * AT_ONCE, shards=2)) as cluster:
        while done < count:
            batch = range(done, min(done + AT_ONCE, count))
            jobs = {f"healthy-{i}": HEALTHY[i % len(HEALTHY)] for i in batch}
            for name, policy in jobs.items():
                cluster.submit(healthy_job(name, train, test, policy))
            for name, policy in jobs.items():
                cluster.wait_progress(name, step=STEPS * (1 if "bsp" in policy else 2), timeout=240)
            for name, complaints in ask_often(cluster, jobs).items():
                epoch = cluster.describe(name)["epoch"]
                clean += not complaints
                said = "; ".join(complaints) or "nothing wrong"
                print(f"{name:15} epoch {epoch:3}  {said}", flush=True)
                cluster.cli("cancel", name)
            wait_until(
                lambda: all(worker["state"] == "idle" for worker in cluster.get("workers")),
                60,
                "workers to be idle",
            )
            done += len(jobs)
    return clean


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="one cause")
    parser.add_argument("--healthy", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:

        def data(part, samples):
            (Path(folder) / part).mkdir()
            return write_idx(Path(folder) / part, samples)

        held, cases, worst = run_cases(options.only, *data("cases", 6400))
        clean = run_healthy(options.healthy, data("train", 320), data("test", 64))
    print(
        f"figure: {held} of {cases} causes named first, figures within {100 * worst:.1f} %; "
        f"{clean} of {options.healthy} healthy jobs nothing wrong"
    )
    return 0 if held == cases and clean == options.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
