"""Ended jobs do not slow live ones down: thousands of jobs that have ended and are kept.

First: thousands of one-step jobs on one cluster, without retention. After 100 of them and at the
end the cost of a job, a report, orders, a scrape and a list is measured, and the memory that each
daemon gained per job, without the values that it keeps. Then: a job trains beside 100 submissions
of 4 MiB each, which are kept. Prints a table, then `figure:`. Exit status 1: a bound does not hold.
"""

import argparse
import json
import re
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e import scrape  # noqa: E402
from tests.e2e.cluster import Cluster, job_file  # noqa: E402

RATIO_MAX = 1.25
MEMORY_MAX = 4096  # bytes per ended job
SECONDS_MAX = 25 * 60
RATE_MIN = 0.95
IDLE_MAX = 0.05  # of a processor, of each daemon, when nothing runs
GAP_MAX = 0.5  # seconds between two acknowledgements
PROBES = 30  # jobs that are measured one by one
AT_ONCE = 8
LARGE = 100
LARGE_BYTES = 1_040_000  # of a label; four of them are just below the limit of a specification


def one_step(name):
    return job_file(
        name,
        {"builtin": "counter"},
        {"train": {"counter": {"samples": 8}}},
        batch={"global": 8, "microBatches": 4},
        consistency={"ssp": {"staleness": 1}},
        optimizer={"sgd": {"learningRate": 1}},
        stop={"epochs": 1},
    )


def resident_bytes(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status).group(1))


def cpu_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def total(metrics, name, **labels):
    return sum(
        value
        for _, samples in metrics.values()
        for sample, had, value in samples
        if sample == name and labels.items() <= had.items()
    )


def run_job(cluster, name):
    """Seconds from submission to end, as seen by a client that follows the log."""
    begin = time.monotonic()
    cluster.submit(one_step(name))
    log = cluster.cli("logs", name, "--follow", timeout=300)
    seconds = time.monotonic() - begin
    if "SUCCEEDED" not in log.stdout:
        raise RuntimeError(f"{name}: {log.stdout}{log.stderr}")
    return seconds


def run_many(cluster, begin, end):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda i: run_job(cluster, f"job-{i}"), range(begin, end)))


class Moment:
    """The costs with this many jobs kept."""

    def __init__(self, cluster, label):
        before = scrape.parse(cluster.ask("coordinator", "/metrics")[2])
        self.seconds = statistics.median(run_job(cluster, f"{label}-{i}") for i in range(PROBES))
        after = scrape.parse(cluster.ask("coordinator", "/metrics")[2])
        grown = lambda name, role: total(after, name, role=role) - total(before, name, role=role)
        self.costs = {"submission to end, s": self.seconds}
        for role in ("worker", "shard"):
            reports = grown("starling_coordinator_reports_total", role)
            for what in ("report", "order"):
                self.costs[f"bytes of a {role}'s {what}"] = (
                    grown(f"starling_coordinator_{what}_bytes_total", role) / reports
                )
        pages = {name: cluster.ask(name, "/metrics")[2] for name in cluster.processes}
        for role in ("coordinator", "shard", "worker"):
            self.costs[f"series of a {role}"] = statistics.median(
                sum(not line.startswith("#") for line in page.splitlines())
                for name, page in pages.items()
                if name.startswith(role)
            )
        self.costs["first page of get jobs, s"] = statistics.median(
            self.list_jobs(cluster) for _ in range(15)
        )
        time.sleep(5)  # freed memory is returned
        self.memory = {name: resident_bytes(process) for name, process in cluster.processes.items()}
        for name in self.memory:
            if name.startswith("shard"):
                self.memory[name] -= total(scrape.parse(pages[name]), "starling_ps_memory_bytes")
        begin = {name: cpu_seconds(process) for name, process in cluster.processes.items()}
        time.sleep(5)
        self.idle = {
            name: (cpu_seconds(process) - begin[name]) / 5
            for name, process in cluster.processes.items()
        }

    @staticmethod
    def list_jobs(cluster):
        begin = time.monotonic()
        assert cluster.cli("get", "jobs").returncode == 0
        return time.monotonic() - begin


def many_small(jobs):
    flags = {"coordinator": ["--keep-ended-jobs", "all"]}
    begin = time.monotonic()
    with Cluster(shards=2, workers=8, worker_flags=["--lanes", "1"], flags_of=flags) as cluster:
        run_many(cluster, 0, 100 - PROBES)
        early = Moment(cluster, "early")
        run_many(cluster, 100 - PROBES, jobs - 2 * PROBES)
        late = Moment(cluster, "late")
        kept = int(
            total(
                scrape.parse(cluster.ask("coordinator", "/metrics")[2]),
                "starling_coordinator_jobs",
                state="SUCCEEDED",
            )
        )
    seconds = time.monotonic() - begin
    ratios = {}
    print(f"{'':<28} {'100 kept':>12} {f'{kept} kept':>12} {'ratio':>6}")
    for what, cost in early.costs.items():
        ratios[what] = late.costs[what] / cost
        print(f"{what:<28} {cost:>12.5g} {late.costs[what]:>12.5g} {ratios[what]:>6.2f}")
    grown = {name: (late.memory[name] - early.memory[name]) / (kept - 100) for name in late.memory}
    for name, each in grown.items():
        print(
            f"{name:<28} {each:>8.0f} bytes of memory a job, processor "
            f"{100 * early.idle[name]:.1f} % and {100 * late.idle[name]:.1f} % when idle"
        )
    worst = max(ratios, key=ratios.get)
    greedy = max(grown, key=grown.get)
    busy = max(late.idle, key=late.idle.get)
    text = (
        f"{kept} jobs in {seconds:.0f} s: at most {ratios[worst]:.2f} times what it was after 100 "
        f"({worst}), at most {grown[greedy]:.0f} bytes of memory a job ({greedy}) and "
        f"{100 * late.idle[busy]:.1f} % of a processor when idle ({busy})"
    )
    holds = (
        kept == jobs
        and seconds <= SECONDS_MAX
        and ratios[worst] <= RATIO_MAX
        and grown[greedy] <= MEMORY_MAX
        and late.idle[busy] <= IDLE_MAX
    )
    return holds, text


class Acknowledgements(threading.Thread):
    """When a worker's pushes were acknowledged, from repeated reads of its recent spans."""

    def __init__(self, cluster, address):
        super().__init__(daemon=True)
        self.cluster, self.address = cluster, address
        self.times, self.over = {}, threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            for span in self.cluster.spans(self.address)["spans"]:
                if span["category"] == "push":
                    clock, end = span["clock"], span["end_us"] / 1e6
                    self.times[clock] = max(self.times.get(clock, 0), end)

    def longest_gap(self, first_clock):
        times = sorted(time for clock, time in self.times.items() if clock >= first_clock)
        return max(b - a for a, b in zip(times, times[1:]))


def large_file(cluster, name):
    """A job whose specification is nearly 4 MiB, from a file a quarter as large (YAML aliases)."""
    spec = one_step(name)["spec"]
    path = cluster.directory / f"{name}.yaml"
    path.write_text(
        "apiVersion: starling/v1\nkind: TrainingJob\nmetadata:\n"
        f"  name: {name}\n  labels:\n    a: &text {'x' * LARGE_BYTES}\n"
        "    b: *text\n    c: *text\n    d: *text\n"
        f"spec: {json.dumps(spec)}\n"
    )
    return path


def few_large(jobs, seconds):
    flags = {"coordinator": ["--keep-ended-jobs", "all"]}
    with Cluster(
        shards=2,
        workers=2,
        worker_flags=["--lanes", "1", "--replay-compute", "0.01s,0.02s"],
        flags_of=flags,
    ) as cluster:
        job = job_file(
            "runs",
            {"builtin": "counter"},
            {"train": {"counter": {"samples": 8_000_000}}},
            batch={"global": 8, "microBatches": 4},
            consistency={"ssp": {"staleness": 1}},
            optimizer={"sgd": {"learningRate": 1}},
            stop={"epochs": 1},
        )
        cluster.submit(job)
        cluster.wait_progress("runs", step=20)
        worker = next(w for w in cluster.get("workers") if w["job"] == "runs")
        metrics = lambda: scrape.parse(cluster.ask(worker["name"], "/metrics")[2])
        rates = lambda count: [rate(metrics) for _ in range(count)]
        acknowledgements = Acknowledgements(cluster, worker["address"])
        acknowledgements.start()
        before = rates(seconds)
        first_clock = max(acknowledgements.times)
        during, failed = [], []

        def submit_all():
            for i in range(jobs):
                path = large_file(cluster, f"large-{i}")
                if (result := cluster.cli("submit", "-f", str(path))).returncode != 0:
                    failed.append(result.stderr)
                path.unlink()
                if cluster.wait(f"large-{i}", 120) != 0:
                    failed.append(f"large-{i}")

        submitting = threading.Thread(target=submit_all)
        submitting.start()
        while submitting.is_alive():
            during += rates(1)
        submitting.join()
        after = rates(seconds)
        acknowledgements.over.set()
        acknowledgements.join()
        gap = acknowledgements.longest_gap(first_clock)
        state = cluster.describe("runs")["state"]
    if failed:
        print("failed:", failed[0], f"and {len(failed) - 1} more")
    share = min(statistics.median(during), statistics.median(after)) / statistics.median(before)
    text = (
        f"{jobs - len(failed)} jobs of 4 MiB kept: samples/s at {share:.3f} of before, the longest "
        f"gap between acknowledgements {gap:.2f} s"
    )
    return not failed and share >= RATE_MIN and gap <= GAP_MAX and state == "RUNNING", text


def rate(metrics):
    """Samples per second, over one second."""
    name = "starling_worker_samples_total"
    begin, first = time.monotonic(), total(metrics(), name)
    time.sleep(1)
    return (total(metrics(), name) - first) / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--large", type=int, default=LARGE)
    parser.add_argument("--seconds", type=int, default=15, help="that the rate is measured for")
    parser.add_argument("--part", choices=["small", "large"])
    arguments = parser.parse_args()
    results = []
    if arguments.part != "large":
        results.append(many_small(arguments.jobs))
    if arguments.part != "small":
        results.append(few_large(arguments.large, arguments.seconds))
    print("figure: " + "; ".join(text for _, text in results))
    return 0 if all(holds for holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
