"""A healthy job beside one misbehaving neighbour after another, and a real BSP job beside the same.

    neighbours.py [--window SECONDS] [--turns N]

The healthy job waits instead of computing, so its speed shows what others take from it rather than
how many cores there are. Its samples/s are measured with each neighbour and without it, in turns;
medians count. Then a BSP job that computes is trained alone and beside all of them. Prints
`figure: ...`; exit status 1 unless each ratio is at least 0.9 and the trained bits are the same.
Standard library only.
"""

import argparse
import concurrent.futures
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time

from tests.e2e.cluster import (
    Cluster,
    binary,
    job_file,
    parameters_sha256,
    protocol_number,
    wait_until,
)
from tests.e2e.strangers import listening_ports, stalled_reader

RATIO_MIN = 0.9
STALLED_READERS = 100
SUBMISSIONS = 100
HIDDEN = [
    512,
    128,
]  # slice 0 of the job, in partition 0, has 256 KiB: more than HTTP/2's first window
LONG_EPOCH_BYTES = 1_000_000_000  # one sample, and one step, per byte
# Each process opens the file in its own working directory, so each may see a different one.
TABLE = "/proc/self/cwd/table.csv"
ROWS = 4096


def table(seed):
    """Rows of the same length for every seed."""
    draw = random.Random(seed)
    return "".join(
        f"{draw.randrange(10)},{draw.randrange(10)},{draw.randrange(10)},{draw.randrange(3)}\n"
        for _ in range(ROWS)
    )


class Scene(Cluster):
    """Two workers for the healthy job, which wait instead of computing. Others bring their own."""

    def __init__(self, pace="0.02s,0.02s"):
        flags = {f"worker-{i}": ["--replay-compute", pace] for i in range(2)} if pace else {}
        super().__init__(shards=2, workers=2, flags_of=flags)
        (self.directory / "table.csv").write_text(table(1))
        self.strangers = {}

    def start_stranger(self, name, text, *flags):
        """A worker with another table, or with none."""
        folder = self.directory / f"of-{name}"
        folder.mkdir(exist_ok=True)
        if text is not None:
            (folder / "table.csv").write_text(text)
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [
                    binary(self.worker_binary),
                    "--coordinator",
                    self.coordinator,
                    "--name",
                    name,
                    "--listen",
                    "127.0.0.1:0",
                    *self._admin_flags(name),
                    *flags,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=folder,
            )

    def start_bad_stranger(self, name, text, *flags, why=""):
        """A worker that the healthy job sets aside; returns once that has happened again."""
        said = f"goes on without {name}: {why}"
        count = lambda: self.cli("logs", "healthy").stdout.count(said)
        before = count()
        self.start_stranger(name, text, *flags)
        wait_until(lambda: count() > before, 90, f"'{said}' in the log of healthy")

    def stop_stranger(self, name):
        """Stops a worker that no job needs."""
        self.processes[name].kill()
        self.processes[name].wait()

    def drain_stranger(self, name):
        self.processes[name].terminate()
        self.processes[name].wait(60)

    def samples_per_second(self, job, window):
        began, first = time.monotonic(), int(self.describe(job)["step"])
        time.sleep(window)
        status = self.describe(job)
        if status["state"] != "RUNNING":
            raise RuntimeError(f"{job} is {status['state']}: {status['reason']}")
        return (int(status["step"]) - first) * 32 / (time.monotonic() - began)

    def end(self, *names):
        for name in names:
            self.cli("cancel", name)
            self.cli("delete", name)


def healthy(name, workers, consistency):
    return job_file(
        name,
        {"builtin": "mlp", "hidden": HIDDEN},
        {"train": {"csv": {"path": TABLE}}},
        batch={"global": 32, "microBatches": 4},
        workers=workers,
        consistency=consistency,
        stop={"epochs": 100_000},
    )


def small(name, **workers):
    return job_file(
        name,
        {"builtin": "counter"},
        {"train": {"counter": {"samples": 64}}},
        batch={"global": 8, "microBatches": 4},
        workers=workers or {"min": 1, "max": 1},
        consistency={"ssp": {"staleness": 1}},
        optimizer={"sgd": {"learningRate": 1}},
    )


# ---- Neighbours: each takes the scene and returns what ends it ----


def never_starts(scene):
    scene.submit(small("never", min=9, max=9))
    return lambda: scene.end("never")


def many_submissions(scene):
    names = [f"flood-{i}" for i in range(SUBMISSIONS)]
    pool = concurrent.futures.ThreadPoolExecutor(SUBMISSIONS)
    answers = [pool.submit(scene.submit, small(name)) for name in names]
    scene.start_stranger("worker-2", None)  # without the table it serves these jobs only

    def end():
        for answer in answers:
            answer.result()  # none was refused
        pool.shutdown()
        wait_until(
            lambda: all(
                job["state"] == "SUCCEEDED"
                for job in scene.get("jobs")
                if job["name"].startswith("flood-")
            ),
            300,
            "the flood to be over",
        )
        scene.drain_stranger("worker-2")
        scene.end(*names)

    return end


def without_data(scene):
    scene.start_bad_stranger("worker-without", None)
    return lambda: scene.stop_stranger("worker-without")


def other_data(scene):
    scene.start_bad_stranger("worker-other", table(2), why="worker-other sees different data")
    return lambda: scene.stop_stranger("worker-other")


def hangs(scene):
    scene.start_bad_stranger(
        "worker-hangs", table(1), "--inject-data-wait", "3600s", why="worker-hangs reports, but"
    )
    return lambda: scene.stop_stranger("worker-hangs")


def stalled_readers(scene):
    reply = json.loads(scene.cli("describe", "job", "healthy", "-o", "json").stdout)
    port = int(reply["views"][0]["primaryAddress"].split(":")[1])
    shard = next(
        name
        for name in ("shard-0", "shard-1")
        if port in listening_ports(scene.processes[name].pid)
    )
    connections = [
        stalled_reader(
            ("127.0.0.1", port),
            protocol_number(),
            int(reply["status"]["uid"]),
            piece=0,
            partition=0,
        )
        for _ in range(STALLED_READERS)
    ]

    def pinned():
        page = scene.ask(shard, "/metrics")[2]
        return float(
            re.search(r"^starling_ps_old_values_bytes\S* (\S+)$", page, re.MULTILINE).group(1)
        )

    wait_until(lambda: pinned() > 0, 30, "the readers to hold old values back")
    return lambda: [connection.close() for connection in connections]


def long_epochs(scene):
    path = scene.directory / "sparse.txt"
    with open(path, "wb") as file:
        file.truncate(LONG_EPOCH_BYTES)
    job = job_file(
        "long",
        {"builtin": "gpt2", "depth": 1, "width": 16, "heads": 1},
        {"train": {"text": {"path": str(path), "context": 8, "stride": 1}}},
        batch={"global": 1, "microBatches": 1},
        consistency={"async": {}},
    )
    scene.submit(job)
    scene.start_stranger("worker-long", None, "--replay-compute", "0.01s,0.01s")
    scene.wait_progress("long", step=5)

    def end():
        scene.end("long")
        scene.stop_stranger("worker-long")

    return end


def scrapes(scene):
    over = threading.Event()

    def run():
        while not over.wait(0.1):
            for name in ("coordinator", "shard-0", "shard-1", "worker-0"):
                scene.ask(name, "/metrics")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end():
        over.set()
        thread.join(60)

    return end


NEIGHBOURS = [
    never_starts,
    many_submissions,
    without_data,
    other_data,
    hangs,
    stalled_readers,
    long_epochs,
    scrapes,
]


def ratio(scene, neighbour, options):
    """The healthy job's median speed with the neighbour, over that without it."""
    without, beside = [], []
    for _ in range(options.turns):
        without.append(scene.samples_per_second("healthy", options.window))
        end = neighbour(scene)
        beside.append(scene.samples_per_second("healthy", options.window))
        end()
    print(f"{neighbour.__name__}: {beside} samples/s, without it {without}", flush=True)
    return statistics.median(beside) / statistics.median(without)


def speeds(options):
    with Scene() as scene:
        scene.submit(healthy("healthy", {"min": 2, "max": 6}, {"ssp": {"staleness": 4}}))
        scene.wait_progress("healthy", step=20)
        return {neighbour.__name__: ratio(scene, neighbour, options) for neighbour in NEIGHBOURS}


def trained_bits(neighbours):
    """The digest of a BSP job that computes, trained beside all of them."""
    with Scene(pace=None) as scene:
        job = healthy("healthy", {"min": 2, "max": 6}, {"bsp": {}})
        job["spec"]["stop"] = {"steps": 20_000}
        scene.submit(job)
        scene.wait_progress("healthy", step=20)
        ends = [neighbour(scene) for neighbour in neighbours]
        if scene.wait("healthy", timeout=600) != 0:
            raise RuntimeError(str(scene.describe("healthy")))
        digest = parameters_sha256(scene.export("healthy"))
        for end in ends:
            end()
        return digest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=float, default=6)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    ratios = speeds(options)
    alone, beside = trained_bits([]), trained_bits(NEIGHBOURS)
    worst = min(ratios, key=ratios.get)
    same = alone == beside
    print(f"bits: alone {alone}, beside all {beside}")
    print(
        f"figure: samples/s beside the worst neighbour ({worst}) {ratios[worst]:.2f} of before; "
        f"BSP's bits {'the same' if same else 'DIFFER'}"
    )
    return 0 if same and ratios[worst] >= RATIO_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
