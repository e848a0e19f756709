"""SIGTERM with open streams: how long each daemon takes to end that has nothing to hand over.

    shutdown.py [--times N]

In each round a job has ended, and clients that read nothing hold streams to both shards, on which
its values wait; another job, which keeps one copy of its values, trains on all workers; a client
follows the log of a third, which waits for more workers. All workers are asked to stop at once,
while they train. Then that job is cancelled, it and the one that has ended are deleted, as shards
would wait for the coordinator to hand over their values, and shards and coordinator are asked at
once, while the clients stay. Prints `figure: ...`; exit status 1 unless at least N daemons ended
with status 0 within 5 s each. Standard library only.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, binary, job_file, protocol_number, wait_until
from tests.e2e.neighbours import HIDDEN
from tests.e2e.strangers import stalled_reader

SHARDS, WORKERS = 2, 6
READERS = 5  # to each shard
SECONDS_MAX = 5.0
GIVE_UP = 30  # seconds


def job(name, data, hidden, **more):
    return job_file(
        name,
        {"builtin": "mlp", "hidden": hidden},
        {"train": {"idx": {"images": data[0], "labels": data[1]}}},
        consistency={"ssp": {"staleness": 2}},
        batch={"global": 64, "microBatches": 8},
        **more,
    )


def stalled_readers(cluster, name, protocol):
    """Connections to all shards that ask for the first slice, one of more than HTTP/2's first
    window. A shard that does not lead it refuses, and keeps the stream."""
    reply = cluster.describe_all(name)
    return [
        stalled_reader(
            (host, int(port)), protocol, reply["status"]["uid"], view=reply["views"][0]["number"]
        )
        for host, port in (shard["address"].rsplit(":", 1) for shard in cluster.get("shards"))
        for _ in range(READERS)
    ]


def stop_all(cluster, names, took):
    """SIGTERM to all of them; appends to each role's times. A bad end raises."""
    began = time.monotonic()
    for name in names:
        cluster.kill(name, signal.SIGTERM)
    waiting = list(names)
    while waiting:
        for name in list(waiting):
            status = cluster.processes[name].poll()
            if status is None:
                continue
            waiting.remove(name)
            took[name.split("-")[0]].append(time.monotonic() - began)
            if status != 0:
                raise RuntimeError(f"{name} ended with status {status}")
        if time.monotonic() - began > GIVE_UP:
            raise RuntimeError(f"{', '.join(waiting)} did not end within {GIVE_UP} s of SIGTERM")
        time.sleep(0.01)


def shards_hold_nothing(cluster):
    return all(int(shard.get("valueBytes", 0)) == 0 for shard in cluster.get("shards"))


def one_round(folder, protocol, took):
    data = write_idx(folder, samples=640)
    with Cluster(shards=SHARDS, workers=WORKERS, worker_flags=["--lanes", "1"]) as cluster:
        all_workers = {"min": WORKERS, "max": WORKERS}
        cluster.submit(job("ended", data, HIDDEN, workers=all_workers, stop={"epochs": 2}))
        if cluster.wait("ended") != 0:
            raise RuntimeError(cluster.describe("ended")["reason"])
        readers = stalled_readers(cluster, "ended", protocol)
        for name, workers in (("trains", WORKERS), ("waits", WORKERS + 1)):
            several = {"min": workers, "max": workers}
            stop = {"epochs": 100_000}
            cluster.submit(job(name, data, [32], workers=several, stop=stop, durability="none"))
        cluster.wait_progress("trains", step=20)
        follower = subprocess.Popen(
            [
                binary("tools/cli/starling"),
                *("logs", "waits", "-f", "--coordinator", cluster.coordinator),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        try:
            stop_all(cluster, [f"worker-{i}" for i in range(WORKERS)], took)
            cluster.cli("cancel", "trains")
            wait_until(
                lambda: cluster.describe("trains")["state"] == "CANCELLED", 30, "the cancellation"
            )
            deleted = cluster.cli("delete", "ended", "trains")
            if deleted.returncode != 0:
                raise RuntimeError(deleted.stderr)
            wait_until(lambda: shards_hold_nothing(cluster), 30, "the shards to forget the jobs")
            shards = [f"shard-{i}" for i in range(SHARDS)]
            stop_all(cluster, [*shards, "coordinator"], took)
        finally:
            follower.kill()
            follower.wait()
            for reader in readers:
                reader.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=200)
    options = parser.parse_args()
    took, protocol = defaultdict(list), protocol_number()
    while sum(map(len, took.values())) < options.times:
        with tempfile.TemporaryDirectory() as folder:
            one_round(folder, protocol, took)
        done = sum(map(len, took.values()))
        worst = max(map(max, took.values()))
        print(f"{done} daemons have ended, after {worst:.2f} s at most", flush=True)
    print(
        f"figure: {done} daemons ended with status 0, "
        + ", ".join(
            f"{role} {statistics.median(times):.2f} s (at most {max(times):.2f} s)"
            for role, times in sorted(took.items())
        )
    )
    return 0 if worst <= SECONDS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
