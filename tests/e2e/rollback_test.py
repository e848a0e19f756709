"""Jobs on real processes go back to their last checkpoint when values are lost."""

import re
import shutil
import signal
import tempfile
import unittest
from pathlib import Path

from tests.e2e.bsp_matrix_test import ADAM, LAYERS, write_idx
from tests.e2e.cluster import Cluster, floats, job_file, parameters_sha256, wait_until
from tests.e2e.promises import check_counted, check_same_bits

STEPS = 4000


class Rollback(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="starling-rollback-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        images, labels = write_idx(cls.folder, samples=1000)  # 15 full batches and one of 40
        cls.data = {
            "train": {"idx": {"images": images, "labels": labels}},
            "test": {"idx": {"images": images, "labels": labels}},
        }
        with Cluster(shards=1, workers=1) as cluster:
            cluster.submit(cls.job("alone", checkpoint=None))
            if cluster.wait("alone", 240) != 0:
                raise RuntimeError(f"undisturbed: {cluster.describe('alone')}")
            cls.undisturbed = parameters_sha256(cluster.export("alone"))

    @classmethod
    def job(cls, name, checkpoint=(("everySteps", 20), ("keep", 2)), **more):
        spec = {
            "optimizer": ADAM,
            "batch": {"global": 64, "microBatches": 8},
            "workers": {"min": 1, "max": 2},
            "stop": {"steps": STEPS},
            "evaluate": {"everyEpochs": 2},
            **more,
        }
        job = job_file(name, {"layers": LAYERS}, cls.data, **spec)
        if checkpoint:
            job["spec"]["checkpoint"] = dict(checkpoint)
        return job

    def wait_checkpoint(self, cluster, job, beyond=0):
        """The step of a checkpoint that is taken, of a later step than `beyond`."""

        def step():
            last = cluster.describe(job).get("checkpoint", {}).get("last", {})
            return int(last.get("step", 0)) > beyond and int(last["step"])

        return wait_until(step, 120, f"a checkpoint of {job}")

    def wait_back(self, cluster, job, restarts):
        """The status of the job when it runs again."""

        def back():
            status = cluster.describe(job)
            return status.get("restarts") == restarts and status["state"] != "PENDING" and status

        return wait_until(back, 60, f"{job} to go back")

    def check_bits(self, cluster, job):
        values = parameters_sha256(cluster.export(job))
        check_same_bits({job: values, "undisturbed": self.undisturbed})

    def check_end(self, cluster, job, restarts=1):
        self.assertEqual(cluster.wait(job, 300), 0, cluster.describe(job))
        status = cluster.describe(job)
        self.assertEqual(status.get("restarts"), restarts, status)
        self.assertEqual(status["era"], restarts)
        self.assertTrue(status["reproducible"])
        self.check_bits(cluster, job)
        return status

    def test_both_copies_are_lost(self):
        with Cluster(shards=2, workers=2, checkpoints=True) as cluster:
            cluster.submit(self.job("both", durability="replicated"))
            cluster.wait_whole("both")
            step = self.wait_checkpoint(cluster, "both")
            for shard in ("shard-0", "shard-1"):
                cluster.kill(shard)
            wait_until(lambda: cluster.describe("both")["state"] == "PENDING", 60, "the loss")
            reason = cluster.describe("both")["reason"]
            self.assertRegex(reason, r"is gone .*: lost partition")
            for shard in ("shard-0", "shard-1"):
                cluster.start_shard(shard)
            status = self.check_end(cluster, "both")
            back = re.search(r"goes back to step (\d+), checkpoint ", status["lastRestart"])
            self.assertGreaterEqual(int(back[1]), step)
            text = cluster.cli("describe", "job", "both").stdout
            self.assertIn("Went back:", text)
            self.assertIn("goes back to step", cluster.cli("logs", "both").stdout)

    def test_without_a_checkpoint_it_begins_again(self):
        """Also on a cluster without a folder for checkpoints."""
        with Cluster(shards=2, workers=2) as cluster:
            cluster.submit(self.job("young", checkpoint=None, durability="none"))
            cluster.wait_progress("young", step=20)
            cluster.kill("shard-1")
            self.wait_back(cluster, "young", restarts=1)
            cluster.start_shard("shard-1")
            status = self.check_end(cluster, "young")
            self.assertRegex(
                status["lastRestart"],
                r"shard shard-1 .*: lost partitions? .* at step \d+: begins again with its first "
                r"values, at step 0 \(1 of at most 3 times",
            )
            self.assertIn("begins again", cluster.cli("describe", "job", "young").stdout)
            self.assertIn("begins again", cluster.cli("logs", "young").stdout)

    def test_a_shard_dies_as_the_job_starts(self):
        """Its second copies may still be made then: the job goes on with them, or begins again."""
        with Cluster(shards=2, workers=2) as cluster:
            cluster.submit(self.job("newborn", checkpoint=None))
            wait_until(
                lambda: cluster.describe("newborn")["state"] == "RUNNING", 60, "the start", 0.01
            )
            cluster.kill("shard-1")
            cluster.start_shard("shard-1")
            self.assertEqual(cluster.wait("newborn", 300), 0, cluster.describe("newborn"))
            status = cluster.describe("newborn")
            print(f"began again {status.get('restarts', 0)} times")
            self.assertLessEqual(status.get("restarts", 0), 1)
            self.check_bits(cluster, "newborn")

    def test_all_processes_are_killed_at_once(self):
        with Cluster(shards=2, workers=2, checkpoints=True) as cluster:
            cluster.submit(self.job("all"))
            self.wait_checkpoint(cluster, "all")
            for process in cluster.processes.values():
                process.send_signal(signal.SIGKILL)
            for process in cluster.processes.values():
                process.wait()
            cluster.start_coordinator()
            for i in range(2):
                cluster.start_shard(f"shard-{i}")
                cluster.start_worker(f"worker-{i}")
            self.check_end(cluster, "all")

    def test_the_only_copy_is_lost_again_and_again(self):
        with Cluster(shards=1, workers=1, checkpoints=True) as cluster:
            cluster.submit(self.job("one", durability="none"))
            step = 0
            for restarts in (1, 2, 3):
                self.wait_checkpoint(cluster, "one", beyond=step)
                cluster.kill("shard-0")
                cluster.start_shard("shard-0")
                status = self.wait_back(cluster, "one", restarts)
                step = int(status["checkpoint"]["last"]["step"])
            self.check_end(cluster, "one", restarts=3)

    def test_counts_each_sample_once_without_steps_in_common(self):
        epochs, samples = 200, 2048
        job = job_file(
            "count",
            {"builtin": "counter"},
            {"train": {"counter": {"samples": samples}}},
            batch={"global": 32, "microBatches": 4},
            consistency={"ssp": {"staleness": 2}},
            optimizer={"sgd": {"learningRate": 1}},
            stop={"epochs": epochs},
            workers={"min": 2, "max": 2},
        )
        job["spec"]["checkpoint"] = {"everySteps": 100, "keep": 2}
        with Cluster(shards=2, workers=2, checkpoints=True) as cluster:
            cluster.submit(job)
            self.wait_checkpoint(cluster, "count")
            for shard in ("shard-0", "shard-1"):
                cluster.kill(shard)
            for shard in ("shard-0", "shard-1"):
                cluster.start_shard(shard)
            self.wait_back(cluster, "count", restarts=1)
            self.assertEqual(cluster.wait("count", 300), 0, cluster.describe("count"))
            self.assertEqual(cluster.describe("count").get("restarts"), 1)
            rows = floats(cluster.export("count")["counter"])
            check_counted(rows, epochs, samples)


if __name__ == "__main__":
    unittest.main()
