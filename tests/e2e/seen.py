"""What is wrong with a job's copies and checkpoints shows wherever people look, and goes away.

    seen.py

Two shards and two workers train a job, and four states are brought about: a second copy that takes
nothing (the connection from the other shard is held), partitions with one copy (a shard is killed),
a checkpoint that is overdue (a disk that is slow, slow_disk.c), and checkpoints that fail (the
folder is away). Each must show in `starling describe`, on the status page, in the metrics, as an
alert of deploy/monitoring that a real Prometheus fires, and in `starling explain`. Once the cause
is gone none of them may show it.

Without Chromium the data of the page is judged instead of what it draws. Without Prometheus no
alert is judged, and the exit status is 77. Prints a row for each state, then `figure: ...`; exit
status 1 if a place did not show a state, or went on showing it.
"""

import contextlib
import json
import re
import sys
import time
from dataclasses import dataclass
from typing import Callable

from tests.e2e import browser, preload, prometheus, scrape
from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, Timeout, job_file
from tests.e2e.explain import explain
from tests.e2e.slow_link import SlowLink

JOB = "seen"
WORKER_FLAGS = ["--lanes", "1", "--replay-compute", "0.02s,0.02s"]
HIDDEN = [16] * 12  # many parameters: a checkpoint is written with many writes
WRITE_TAKES_MS = 8000  # less than a minute, after which a disk counts as one that hangs
PROMETHEUS_ANSWERS_WITHIN = 60  # seconds
LOOK_EVERY = 0.5  # seconds
GOES_WITHIN = 180  # seconds


@dataclass
class State:
    name: str
    within: float  # seconds: the longest that any place takes to show it
    alert: str
    cause: str  # of `starling explain`
    metric: str  # more than `least` means that it shows
    least: float
    describe: str  # patterns of what is shown
    page: str
    data: Callable  # whether the page's data, one job's, have it
    explain: str = ""  # pattern of the finding's sentence


# For each: the time of the alert's rule, and that of a scrape, a look and a busy machine.
STATES = {
    state.name: state
    for state in [
        State(
            name="backup slow",
            within=30,  # then the job goes on without it
            alert="StarlingBackupSlow",
            cause="slow-backup",
            metric="starling_job_backup_silent_seconds",
            least=3,
            describe=r"waits for its copy on shard-1, which has not answered for \d+ s",
            page=r"waits for its copy on shard-1, which has not answered for \d+ s",
            data=lambda job: "has not answered for" in job["copies_trouble"],
        ),
        State(
            name="not replicated",
            within=420,
            alert="StarlingJobNotReplicated",
            cause="not-replicated",
            metric="starling_job_not_replicated_seconds",
            least=0,
            describe=r"Copies: +two of \d+ of \d+ partitions, one of the others, for ",
            page=r"two copies\s+\d+ of \d+ partitions, incomplete for ",
            data=lambda job: job["partitions_whole"] < job["partitions"]
            and job["unreplicated_seconds"] > 0
            and "has no second copy: no other shard is live" in job["copies_trouble"],
        ),
        State(
            name="checkpoint overdue",
            within=420,
            alert="StarlingCheckpointOverdue",
            cause="checkpoint-failing",
            metric="starling_checkpoint_overdue_seconds",
            least=10,
            describe=r"; one has been due for ",
            page=r"next checkpoint\s+due for ",
            data=lambda job: job["checkpoint"]["overdue_seconds"] > 1,
            explain=r"no checkpoint has got through for .*: shards write it",
        ),
        State(
            name="checkpoint failing",
            within=180,
            alert="StarlingCheckpointFailing",
            cause="checkpoint-failing",
            metric="starling_checkpoint_failing_seconds",
            least=0,
            describe=r"the last attempt failed \(\d+ in all, and none got through for .*\): ",
            page=r"The last checkpoint failed, and none got through for .*: ",
            data=lambda job: job["checkpoint"]["failing_seconds"] > 0
            and "checkpoints" in job["checkpoint"]["trouble"],
            explain=r"; the last attempt failed: .*checkpoints",
        ),
    ]
}


def answer(ask):
    """What Prometheus says, which may be slow for a moment, or start. Else Timeout."""
    until = time.monotonic() + PROMETHEUS_ANSWERS_WITHIN
    while (said := ask()) is None:
        if time.monotonic() > until:
            raise Timeout(f"Prometheus has not answered for {PROMETHEUS_ANSWERS_WITHIN} s")
        time.sleep(LOOK_EVERY)
    return said


class Places:
    """Where people look. `look` asks all of them, and tells which show which state."""

    def __init__(self, cluster, page, alerts):
        self.cluster, self.page, self.alerts = cluster, page, alerts
        self.names = ["describe", "page", "metrics", "explain"] + (["alert"] if alerts else [])

    def look(self):
        """State's name -> the names of the places that show it."""
        describe = self.cluster.cli("describe", "job", JOB).stdout
        metrics = scrape.parse(self.cluster.ask("coordinator", "/metrics")[2])
        findings = explain(self.cluster, JOB)[0]["findings"]
        drawn = self.page.evaluate("document.querySelector('#jobs').innerText") if self.page else ""
        jobs = json.loads(self.cluster.ask("coordinator", "/status.json")[2])["jobs"]
        firing = answer(lambda: self.alerts.firing(job_name=JOB)) if self.alerts else set()

        def shown(state):
            if re.search(state.describe, describe):
                yield "describe"
            if re.search(state.page, drawn) if self.page else state.data(jobs[0]):
                yield "page"
            if scrape.value(metrics, state.metric, job_name=JOB) > state.least:
                yield "metrics"
            if any(
                f["cause"] == state.cause and re.search(state.explain, f["text"]) for f in findings
            ):
                yield "explain"
            if state.alert in firing:
                yield "alert"

        return {name: set(shown(state)) for name, state in STATES.items()}


class Watch:
    """Waits for states to show and to go away; keeps how long each place took."""

    def __init__(self, places):
        self.places = places
        self.shown = {name: {} for name in STATES}  # state -> place -> seconds
        self.gone = {name: {} for name in STATES}

    def wait_shown(self, *names):
        """Until each place has shown each of these states, which begin now."""
        began = time.monotonic()
        while True:
            found = self.places.look()
            since = time.monotonic() - began
            for name in names:
                for place in found[name]:
                    self.shown[name].setdefault(place, since)
            missing = {
                name: [p for p in self.places.names if p not in self.shown[name]] for name in names
            }
            if not any(missing.values()):
                return
            for name in names:
                if missing[name] and since > STATES[name].within:
                    raise Timeout(f"{name} does not show within {since:.0f} s in {missing[name]}")
            time.sleep(LOOK_EVERY)

    def wait_gone(self, *names):
        """Until no place shows any of these states, which end now."""
        began = time.monotonic()
        while True:
            found = self.places.look()
            since = time.monotonic() - began
            for name in names:
                for place in self.places.names:
                    if place in found[name]:
                        self.gone[name].pop(place, None)
                    else:
                        self.gone[name].setdefault(place, since)
            showing = {name: sorted(found[name]) for name in names if found[name]}
            if not showing:
                return
            if since > GOES_WITHIN:
                raise Timeout(f"still shown after {since:.0f} s: {showing}")
            time.sleep(LOOK_EVERY)

    def print_table(self):
        for name in STATES:
            cells = [
                f"{place} {self.shown[name][place]:.0f} s, {self.gone[name][place]:.0f} s"
                for place in self.places.names
            ]
            print(f"{name:20} {' | '.join(cells)}", flush=True)


class SlowDiskCluster(Cluster):
    """A cluster whose shards' disk can be made slow."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.library = preload.library("slow_disk.c", self.directory)
        self.write_takes_ms = preload.Number(self.directory / "write_takes_ms")

    def _spawn(self, name, command):
        if name.startswith("shard"):
            command = [
                "env",
                f"LD_PRELOAD={self.library}",
                f"SLOW_DISK_ROOT={self.checkpoints.resolve()}",
                f"SLOW_DISK_FILE={self.write_takes_ms.path}",
                *command,
            ]
        super()._spawn(name, command)


def job(folder):
    images, labels = write_idx(folder, samples=640)
    made = job_file(
        JOB,
        {"builtin": "mlp", "hidden": HIDDEN},
        {"train": {"idx": {"images": images, "labels": labels}}},
        optimizer={"adam": {"learningRate": 0.001}},
        batch={"global": 32, "microBatches": 2},
        workers={"min": 1, "max": 2},
        stop={"epochs": 100_000},
    )
    made["spec"]["checkpoint"] = {"everySteps": 50, "keep": 2}
    return made


def run(cluster, link, watch):
    cluster.submit(job(cluster.directory))
    cluster.wait_whole(JOB)
    cluster.wait_progress(JOB, step=100)
    watch.wait_gone(*STATES)  # nothing is wrong yet

    link.hold(cluster.processes["shard-0"].pid)
    watch.wait_shown("backup slow")
    link.release()
    watch.wait_gone("backup slow", "not replicated")

    # Both alerts need five minutes.
    cluster.kill("shard-0")
    cluster.wait_progress(JOB, step=int(cluster.describe(JOB)["step"]) + 10)
    cluster.write_takes_ms.value = WRITE_TAKES_MS
    watch.wait_shown("not replicated", "checkpoint overdue")
    cluster.write_takes_ms.value = 0
    watch.wait_gone("checkpoint overdue")
    cluster.start_shard("shard-0")
    watch.wait_gone("not replicated")

    away = cluster.checkpoints.with_name("away")
    cluster.checkpoints.rename(away)
    watch.wait_shown("checkpoint failing")
    away.rename(cluster.checkpoints)
    watch.wait_gone(*STATES)


def open_page(chromium, cluster):
    page = chromium.open(f"http://127.0.0.1:{cluster.admin_port('coordinator')}/")
    page.wait_for("document.querySelector('#as-of').textContent.startsWith('as of')")
    return page


def run_beside(cluster, link, chromium):
    """The watch, after everything has shown and gone."""
    alerts = None
    if not prometheus.WHY_NONE:
        port = cluster.admin_port("coordinator")
        alerts = prometheus.Prometheus(cluster.directory, {"coordinator": port})
    try:
        if alerts:
            answer(alerts.firing)
        page = open_page(chromium, cluster) if chromium else None
        watch = Watch(Places(cluster, page, alerts))
        run(cluster, link, watch)
    finally:
        if alerts:
            alerts.stop()
    status = cluster.describe(JOB)
    if status["state"] != "RUNNING" or status.get("restarts"):
        raise RuntimeError(f"the job did not go on: {status}")
    return watch


def run_cluster():
    with SlowLink() as link:
        cluster = SlowDiskCluster(shards=2, workers=2, worker_flags=WORKER_FLAGS, checkpoints=True)
        port = cluster.directory / "port"
        flags = ["--advertise-address", link.address, "--port-file", str(port)]
        cluster.flags_of["shard-1"] = flags
        with cluster:
            link.target = f"127.0.0.1:{int(port.read_text())}"
            with browser.Browser() if browser.PROGRAM else contextlib.nullcontext() as chromium:
                return run_beside(cluster, link, chromium)


def main():
    not_judged = []
    if prometheus.WHY_NONE:
        not_judged.append(f"alerts ({prometheus.WHY_NONE})")
    if not browser.PROGRAM:
        not_judged.append("how the page draws its data (no Chromium: tools/setup.sh --pictures)")
    for what in not_judged:
        print(f"NOT TESTED: {what}", flush=True)
    try:
        watch = run_cluster()
    except Timeout as miss:
        print(f"figure: {miss}")
        return 1
    print("seconds until each place shows it, and until it is gone there:")
    watch.print_table()
    slowest = {
        name: (max(watch.shown[name].values()), max(watch.gone[name].values())) for name in STATES
    }
    text = "; ".join(f"{name} {a:.0f} s, gone {b:.0f} s" for name, (a, b) in slowest.items())
    print(
        f"figure: {len(STATES)} states in {len(watch.places.names)} places, shown everywhere "
        f"after: {text}" + (f"; NOT TESTED: {', '.join(not_judged)}" if not_judged else "")
    )
    return 77 if prometheus.WHY_NONE else 0


if __name__ == "__main__":
    sys.exit(main())
