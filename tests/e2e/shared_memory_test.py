"""Shared memory between workers and shards on real processes: it changes no bit, it is off where a
flag says so, and no death leaves a segment behind.
"""

import hashlib
import random
import re
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, wait_until

JOB = "shared"
OFF = "--shared-memory=off"
SEGMENT = re.compile(r"(\w+-\w+) r\S+ \w+ \S+ (\d+) +/memfd:starling-segment")
SHARES = "shares memory with"
DEATHS = 5
SHARDS, WORKERS = 2, 2


def the_job(folder, consistency, epochs, durability="none"):
    """An MLP whose slices go through segments: most have more than 32 KiB."""
    images, labels = write_idx(folder, samples=512)
    return job_file(
        JOB,
        {"builtin": "mlp", "hidden": [512, 512]},
        {"train": {"idx": {"images": images, "labels": labels}}},
        batch={"global": 32, "microBatches": 4},
        consistency=consistency,
        workers={"min": 1, "max": WORKERS},
        optimizer={"momentum": {"learningRate": 0.01}},
        stop={"epochs": epochs},
        durability=durability,
    )


def segments(cluster):
    """How many of the cluster's processes map each segment: inode -> processes."""
    found = Counter()
    for process in cluster.processes.values():
        if process.poll() is not None:
            continue
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
        found.update({inode for _, inode in SEGMENT.findall(maps)})
    return found


def shared_bytes(cluster):
    """Payloads of both directions, by worker and shard."""
    pattern = r'starling_worker_link_shared_bytes_total\{shard="\d+"\} (\S+)'
    return [
        float(number)
        for i in range(WORKERS)
        for number in re.findall(pattern, cluster.ask(f"worker-{i}", "/metrics")[2])
    ]


class SharedMemory(unittest.TestCase):
    def train(self, shared, **flags):
        """The digest of the parameters behind a short BSP job."""
        with tempfile.TemporaryDirectory() as folder, Cluster(
            shards=SHARDS, workers=WORKERS, **flags
        ) as cluster:
            cluster.submit(the_job(folder, {"bsp": {}}, epochs=40))
            cluster.wait_progress(JOB, step=4)
            sent = wait_until(lambda: shared_bytes(cluster), 30, "links in the metrics")
            if shared:
                wait_until(lambda: min(shared_bytes(cluster), default=0) > 0, 30, "shared bytes")
                self.assertEqual(set(segments(cluster).values()), {2})
            else:
                self.assertEqual(set(sent), {0})
                self.assertFalse(segments(cluster))
            self.assertEqual(cluster.wait(JOB), 0)
            # Workers leave the streams of a job that is over.
            wait_until(lambda: not segments(cluster), 30, "no segment")
            logs = "".join(cluster.log(name) for name in cluster.processes)
            self.assertEqual(SHARES in logs, shared, logs[-2000:])
            digest = hashlib.sha256()
            for name, (_, _, data) in sorted(cluster.export(JOB).items()):
                digest.update(name.encode() + data)
            return digest.hexdigest()

    def test_it_changes_no_bit_and_a_flag_of_either_side_turns_it_off(self):
        off_at_shards = {f"shard-{i}": [OFF] for i in range(SHARDS)}
        digests = {
            self.train(True),
            self.train(True, tls=True),
            self.train(False, worker_flags=[OFF]),
            self.train(False, flags_of=off_at_shards),
        }
        self.assertEqual(len(digests), 1, digests)

    def test_no_death_leaves_a_segment(self):
        source = random.Random(7)
        with tempfile.TemporaryDirectory() as folder, Cluster(
            shards=SHARDS, workers=WORKERS
        ) as cluster:
            cluster.submit(
                the_job(folder, {"ssp": {"staleness": 2}}, epochs=100_000, durability="replicated")
            )
            cluster.wait_progress(JOB, step=4)
            for death in range(DEATHS):
                cluster.wait_whole(JOB)
                victims = [f"worker-{i}" for i in range(WORKERS)]
                victims += [f"shard-{i}" for i in range(SHARDS)]
                victim = victims[death] if death < len(victims) else source.choice(victims)
                cluster.kill(victim)
                start = cluster.start_worker if "worker" in victim else cluster.start_shard
                start(victim)
                step = cluster.describe(JOB)["step"]
                cluster.wait_progress(JOB, step=step + 8)

            # Each is mapped at both ends of a stream, in each direction, and nowhere else.
            def only_those_of_streams():
                ends = list(segments(cluster).values())
                streams = len(ends) / 2
                return set(ends) == {2} and WORKERS <= streams <= WORKERS * SHARDS

            wait_until(only_those_of_streams, 60, "two segments for each stream and no other")
            self.assertEqual(cluster.cli("cancel", JOB).returncode, 0)
            wait_until(lambda: not segments(cluster), 30, "no segment")


if __name__ == "__main__":
    unittest.main()
