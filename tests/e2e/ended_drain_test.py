"""Shards that are asked to stop hand over the values of ended jobs, too.

A rolling restart, as of a StatefulSet: each of two shards in turn gets SIGTERM, ends with status 0,
and is started again. Two jobs have ended before, one with two copies of its values, one with one
(`durability: none`). What is exported afterwards is the same file, byte for byte. Where no other
shard is there, what ends with the shard is named, and the status is 1 for results.
"""

import signal
import unittest
from pathlib import Path

from tests.e2e.cluster import Cluster, job_file, wait_until

SHARDS = 2


def job(name, durability):
    return job_file(
        name,
        {"builtin": "counter"},
        {"train": {"counter": {"samples": 4096}}},
        batch={"global": 64, "microBatches": 4},
        consistency={"bsp": {}},
        optimizer={"sgd": {"learningRate": 1}},
        stop={"epochs": 2},
        durability=durability,
    )


class EndedDrain(unittest.TestCase):
    def exported(self, cluster, name):
        """The file of an export."""
        path, seen = cluster.client_file(f"{name}.safetensors")
        result = cluster.cli("export", name, "--format", "safetensors", "-o", seen)
        self.assertEqual(result.returncode, 0, result.stderr)
        return Path(path).read_bytes()

    def end(self, cluster, jobs):
        for name, durability in jobs:
            cluster.submit(job(name, durability))
            self.assertEqual(cluster.wait(name), 0)
        return {name: self.exported(cluster, name) for name, _ in jobs}

    def leader(self, cluster, job):
        """The shard that has its first partition."""
        primary = cluster.describe_all(job)["views"][0]["primary"]
        (name,) = [shard["name"] for shard in cluster.get("shards") if shard["id"] == primary]
        return name

    def stop(self, cluster, name, status):
        cluster.kill(name, signal.SIGTERM)
        self.assertEqual(cluster.exit_status(name, 60), status, cluster.log(name)[-2000:])

    def test_after_each_shard_in_turn_all_values_can_be_exported(self):
        with Cluster(shards=SHARDS, workers=1) as cluster:
            before = self.end(cluster, [("twice", "replicated"), ("once", "none")])
            for _ in range(2):
                for i in range(SHARDS):
                    name = f"shard-{i}"
                    self.stop(cluster, name, 0)
                    self.assertIn("drained: nothing counts on this shard", cluster.log(name))
                    for ended, file in before.items():
                        self.assertEqual(self.exported(cluster, ended), file, f"without {name}")
                    cluster.start_shard(name)
                    cluster.wait_registered(SHARDS, 1)
            # Also when it was archived and read again from the store.
            cluster.restart_coordinator()
            cluster.wait_registered(SHARDS, 1)
            for ended, file in before.items():
                self.assertEqual(self.exported(cluster, ended), file)

    def test_what_cannot_move_is_named_and_the_status_says_so(self):
        with Cluster(shards=SHARDS, workers=1) as cluster:
            before = self.end(cluster, [("once", "none")])
            self.stop(cluster, "shard-0", 0)
            self.stop(cluster, "shard-1", 1)
            self.assertRegex(
                cluster.log("shard-1"),
                r"values of job once, which ended \([\d.]+ MiB\), have no other copy, and are lost "
                "with this shard",
            )
            for name in ("shard-0", "shard-1"):
                cluster.start_shard(name)
            cluster.wait_registered(SHARDS, 1)
            self.assertIsNone(cluster.try_export("once"))
            self.assertNotEqual(before["once"], b"")

    def test_without_a_coordinator_they_are_kept_until_it_is_back(self):
        with Cluster(shards=SHARDS, workers=1) as cluster:
            before = self.end(cluster, [("once", "none")])
            leader = self.leader(cluster, "once")
            cluster.kill("coordinator")
            cluster.kill(leader, signal.SIGTERM)
            wait_until(
                lambda: "values may have no copy elsewhere: 1" in cluster.log(leader),
                30,
                "the shard to say what it keeps",
            )
            cluster.restart_coordinator()
            self.assertEqual(cluster.exit_status(leader, 60), 0)
            self.assertEqual(self.exported(cluster, "once"), before["once"])


if __name__ == "__main__":
    unittest.main()
