"""A worker whose gradients are not finite in every fifth step is quarantined and named, and jobs
end as without it."""

import shutil
import tempfile
import unittest
from pathlib import Path

from tests.e2e.bsp_matrix_test import LAYERS, write_idx
from tests.e2e.cluster import Cluster, job_file, parameters_sha256, wait_until
from tests.e2e.promises import check_coverage, check_same_bits

ENDLESS = 1_000_000  # steps: until it is cancelled
BROKEN = "worker-1"
SPOILS = ["--inject-non-finite", "5"]


class Poison(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="starling-poison-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        images, labels = write_idx(cls.folder, samples=1000)  # 15 full batches and one of 40
        cls.data = {
            "train": {"idx": {"images": images, "labels": labels}},
            "test": {"idx": {"images": images, "labels": labels}},
        }

    @classmethod
    def job(cls, name, steps=ENDLESS, go_back=False, **more):
        spec = {
            # At a constant rate: after so many steps the values are the same for any job.
            "optimizer": {"adam": {"learningRate": 0.003}},
            "batch": {"global": 64, "microBatches": 8},
            "workers": {"min": 1, "max": 2},
            "stop": {"steps": steps},
            **more,
        }
        job = job_file(name, {"layers": LAYERS}, cls.data, **spec)
        if go_back:
            job["spec"]["checkpoint"] = {"everySteps": 20, "keep": 2}
            job["spec"]["goBackIfNotFinite"] = True
        return job

    @staticmethod
    def worker(cluster):
        return next((w for w in cluster.get("workers") if w["name"] == BROKEN), {"state": "none"})

    def wait_state(self, cluster, state):
        def there():
            worker = self.worker(cluster)
            return worker if worker["state"] == state else None

        return wait_until(there, 120, f"{BROKEN} to be {state}")

    def restart_worker(self, cluster):
        cluster.kill(BROKEN)
        cluster.start_worker(BROKEN)
        self.wait_state(cluster, "idle")

    def wait_quarantined(self, cluster, job):
        worker = self.wait_state(cluster, "quarantined")
        self.assertRegex(worker["trouble"], f"for job {job} was not finite 3 times.*in step")
        self.assertIn(f"{BROKEN} is quarantined", cluster.cli("get", "workers").stderr)
        self.assertIn(f"{BROKEN} is quarantined", cluster.cli("logs", job).stdout)

    def stop(self, cluster, job):
        """Cancels it some steps later; returns how many it has done, and its values' digest."""
        step = int(cluster.describe(job)["step"])
        cluster.wait_progress(job, step=step + 100)
        self.assertEqual(cluster.cli("cancel", job).returncode, 0)
        steps = wait_until(
            lambda: int(cluster.describe(job).get("sealedSteps", 0)), 60, f"the end of {job}"
        )
        return steps, parameters_sha256(cluster.export(job))

    def values_after(self, cluster, name, steps, **more):
        cluster.submit(self.job(name, steps, **more))
        self.assertEqual(cluster.wait(name, 300), 0, cluster.describe(name))
        return parameters_sha256(cluster.export(name))

    def test_in_bsp_the_job_ends_with_the_same_bits(self):
        with Cluster(shards=2, workers=2, flags_of={BROKEN: SPOILS}) as cluster:
            cluster.submit(self.job("bsp"))
            self.wait_quarantined(cluster, "bsp")
            self.assertTrue(cluster.describe("bsp")["reproducible"])
            steps, values = self.stop(cluster, "bsp")
            without = self.values_after(cluster, "without", steps)
            check_same_bits({"spoiled": values, "without": without})
            self.assertEqual(self.worker(cluster)["state"], "quarantined")
            print(f"found: BSP: quarantined, after {steps} steps the SHA-256 of a job without it")
            # It is used again once it was restarted.
            cluster.flags_of = {}
            self.restart_worker(cluster)
            both = self.values_after(cluster, "both", steps, workers={"min": 2, "max": 2})
            check_same_bits({"spoiled": values, "both": both})

    def test_in_ssp_and_async_the_job_does_without_it(self):
        with Cluster(shards=2, workers=2, flags_of={BROKEN: SPOILS}) as cluster:
            for name, policy in (("ssp", {"ssp": {"staleness": 2}}), ("async", {"async": {}})):
                cluster.submit(self.job(name, consistency=policy))
                told = f"{BROKEN} is quarantined for this job"
                wait_until(lambda: told in cluster.cli("logs", name).stdout, 120, told)
                self.assertIn(told, cluster.describe(name)["reason"])
                self.assertEqual(cluster.cli("cancel", name).returncode, 0)
                # Other jobs use it, and each of their samples counts once.
                self.wait_state(cluster, "idle")
                after = f"after-{name}"
                cluster.submit(self.job(after, 500, consistency=policy))
                self.assertEqual(cluster.wait(after, 300), 0, cluster.describe(after))
                status = cluster.describe(after)
                check_coverage(status)
                print(f"found: {name}: quarantined for that job alone")

    def test_with_automatic_return_the_job_goes_back_once(self):
        with Cluster(shards=2, workers=1, checkpoints=True, flags_of={BROKEN: SPOILS}) as cluster:
            cluster.submit(self.job("back", go_back=True))
            taken = lambda: "last" in cluster.describe("back").get("checkpoint", {})
            wait_until(taken, 120, "a checkpoint")
            cluster.start_worker(BROKEN)
            self.wait_quarantined(cluster, "back")
            running = lambda: cluster.describe("back")["state"] == "RUNNING"
            wait_until(running, 60, "the job to go on")
            steps, values = self.stop(cluster, "back")
            status = cluster.describe("back")
            self.assertEqual(status["restarts"], 1, status)
            self.assertRegex(status["lastRestart"], f"{BROKEN} is quarantined.*goes back to step")
            without = self.values_after(cluster, "without", steps)
            check_same_bits({"spoiled": values, "without": without})
            print(f"found: with automatic return {status['restarts']} rollback, the same SHA-256")


if __name__ == "__main__":
    unittest.main()
