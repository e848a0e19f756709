"""`starling local` starts, supervises and stops a cluster of real processes."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.request
from pathlib import Path

from tests.e2e.cluster import binary, wait_until
from tests.e2e.local_cluster import LocalCluster, alive
from tests.e2e.promises import check_coverage

JOB = """
apiVersion: starling/v1
kind: TrainingJob
metadata: {name: count}
spec:
  model: {builtin: counter}
  data: {train: {counter: {samples: 4096}}}
  batch: {global: 32, microBatches: 4}
  optimizer: {sgd: {learningRate: 1}}
  consistency: {ssp: {staleness: 2}}
  workers: {min: 1, max: 2}
  stop: {epochs: 3}
"""


class LocalClusterTest(unittest.TestCase):
    def setUp(self):
        self.home = Path(tempfile.mkdtemp(prefix="starling-local-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        self.cluster = LocalCluster(self.home)
        self.state = self.cluster.state
        (self.home / "job.yaml").write_text(JOB)
        self.addCleanup(self.starling, "local", "down", expect=None)

    def starling(self, *args, expect=0):
        result = self.cluster.starling(*args)
        if expect is not None:
            self.assertEqual(result.returncode, expect, f"{args}: {result.stdout}{result.stderr}")
        return result

    def up(self, *more):
        result = self.starling("local", "up", "--shards", "2", "--workers", "2", "--detach", *more)
        self.assertRegex(result.stdout, r"^address=127\.0\.0\.1:\d+\n$")
        page = re.search(r"^see it at (http://127\.0\.0\.1:\d+/)$", result.stderr, re.M)
        with urllib.request.urlopen(page[1], timeout=30) as reply:
            self.assertIn(b"<title>Starling</title>", reply.read())
        return result.stdout.strip().removeprefix("address=")

    def pid(self, name):
        try:
            return int((self.state / "run" / f"{name}.pid").read_text())
        except FileNotFoundError:
            return None

    def pids(self):
        return self.cluster.pids()

    def incarnation(self, worker):
        workers = json.loads(self.starling("get", "workers", "-o", "json").stdout)
        return next(
            (w["incarnation"] for w in workers if w["name"] == worker and w["state"] != "lost"),
            None,
        )

    def test_trains_and_leaves_nothing_behind(self):
        address = self.up()
        pids = self.pids()
        self.assertEqual(len(pids), 5)
        second = self.starling("local", "up", expect=1)
        self.assertIn(f"runs already in {self.state}", second.stderr)
        self.assertIn(address, second.stderr)

        # The client finds it without any flag.
        self.starling("submit", "-f", str(self.home / "job.yaml"), "--watch")
        job = json.loads(self.starling("describe", "job", "count", "-o", "json").stdout)
        self.assertEqual(job["status"]["state"], "SUCCEEDED")
        self.assertEqual(job["status"]["coverageExpected"], 128)
        check_coverage(job["status"])
        self.starling("submit", "-f", str(self.home / "job.yaml"), expect=1)  # the name is taken
        self.starling("delete", "count")
        self.starling("wait", "count", expect=5)

        self.starling("local", "down")
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        self.starling("get", "jobs", expect=6)
        self.assertIn("no local cluster runs", self.starling("local", "down").stderr)

    def test_down_says_what_ends_and_what_stays(self):
        state = self.home / "a state"
        self.addCleanup(self.starling, "local", "down", "--state", str(state), expect=None)
        up = self.starling(
            "local", "up", "--shards", "1", "--workers", "1", "--detach", "--state", str(state)
        )
        down = f"starling local down --state '{state}'"
        self.assertIn(f"Stop it with {down}\n", up.stderr)
        self.assertIn(
            f"Stop it with: {down}, or",
            self.starling("local", "up", "--state", str(state), expect=1).stderr,
        )
        address = ("--coordinator", up.stdout.strip().removeprefix("address="))
        job = str(self.home / "job.yaml")
        self.starling(
            "submit", "-f", job, "--watch", "--set", "output=runs/count.safetensors", *address
        )
        wait_until(lambda: (state / "outputs/runs/count.safetensors").exists(), 30, "the output")
        exported = self.home / "exported.safetensors"
        self.starling("export", "count", "--format", "safetensors", "-o", str(exported), *address)
        self.assertEqual(
            exported.read_bytes(), (state / "outputs/runs/count.safetensors").read_bytes()
        )
        self.starling(
            "submit",
            "-f",
            job,
            "--set",
            "metadata.name=endless",
            "--set",
            "stop.epochs=100000",
            *address,
        )
        self.wait_job("endless", lambda job: job["state"] == "RUNNING", *address)
        words = self.starling("local", "down", "--state", str(state)).stderr
        self.assertIn("goes on with the next starling local up: endless (RUNNING, ", words)
        self.assertIn("values of jobs that are over, which are in memory alone: count\n", words)
        self.assertIn(f"keeps {state}/outputs", words)
        self.assertTrue((state / "outputs/runs/count.safetensors").exists())

    def wait_job(self, name, holds, *address):
        """The job's status, once this holds."""
        found = {}

        def look():
            result = self.starling("describe", "job", name, "-o", "json", *address, expect=None)
            if result.returncode == 0:
                found.update(json.loads(result.stdout)["status"])
            return result.returncode == 0 and holds(found)

        wait_until(look, 60, f"job {name}")
        return found

    def submit_endless(self):
        self.starling(
            "submit",
            "-f",
            str(self.home / "job.yaml"),
            *("--set", "metadata.name=endless", "--set", "stop.epochs=100000"),
            *("--set", "checkpoint.everySteps=100", "--set", "consistency.bsp={}"),
        )
        there = self.wait_job("endless", lambda job: "last" in job.get("checkpoint", {}))
        return int(there["checkpoint"]["last"]["step"])

    def check_goes_on(self, step):
        """Without another command, from a checkpoint of that step or a later one."""
        job = self.wait_job(
            "endless",
            lambda job: job["state"] == "RUNNING" and "restarts" in job and int(job["step"]) > step,
        )
        self.assertEqual((job["restarts"], job["era"]), (1, 1))
        back = re.search(r"goes back to step (\d+), checkpoint ", job["lastRestart"])
        self.assertGreaterEqual(int(back[1]), step)

    def test_what_ran_goes_on_after_every_process_was_killed_at_once(self):
        address = self.up()
        step = self.submit_endless()
        self.cluster.kill_all()
        self.assertEqual(self.up(), address, "it listens where it did")
        self.check_goes_on(step)
        job = json.loads(self.starling("describe", "job", "endless", "-o", "json").stdout)
        self.assertEqual(int(job["spec"]["checkpoint"]["everySteps"]), 100)

    def test_what_ran_goes_on_after_down_unless_it_is_to_be_fresh(self):
        self.up()
        step = self.submit_endless()
        words = self.starling("local", "down").stderr
        said = re.search(r"goes on with the next starling local up: endless \((.*)\)\n", words)
        self.assertIsNotNone(said, words)
        self.assertRegex(said[1], r"^RUNNING, epoch .*; from step [\d,]+$")
        self.up()
        self.check_goes_on(step)
        self.starling("local", "down")
        self.up("--fresh")
        jobs = json.loads(self.starling("get", "jobs", "-o", "json").stdout)
        self.assertEqual(jobs, [])
        # A job without the key gets checkpoints, too.
        self.starling(
            "submit", "-f", str(self.home / "job.yaml"), "--set", "stop.epochs=100000"
        )
        job = json.loads(self.starling("describe", "job", "count", "-o", "json").stdout)
        rule = job["spec"]["checkpoint"]
        self.assertEqual((rule["everySeconds"], rule["keep"]), (60, 2))

    def test_starts_what_dies_again(self):
        address = self.up()
        before = self.incarnation("worker-0")
        worker, coordinator = self.pid("worker-0"), self.pid("coordinator")
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: self.pid("worker-0") not in (None, worker), 20, "another worker-0")
        wait_until(
            lambda: (self.incarnation("worker-0") or 0) > before, 30, "worker-0 to register again"
        )

        # The coordinator comes back at the same address.
        os.kill(coordinator, signal.SIGKILL)
        wait_until(
            lambda: self.pid("coordinator") not in (None, coordinator), 20, "another coordinator"
        )
        wait_until(
            lambda: self.starling("get", "jobs", expect=None).returncode == 0, 30, "the coordinator"
        )
        self.assertEqual((self.state / "address").read_text().strip(), address)
        # It accepts jobs as soon as a worker has reported to it.
        job = str(self.home / "job.yaml")
        wait_until(
            lambda: self.starling("submit", "-f", job, "--dry-run", expect=None).returncode == 0,
            30,
            "a worker to report",
        )
        self.starling("submit", "-f", job, "--watch")

    def test_of_two_started_at_once_one_runs(self):
        command = [binary("tools/cli/starling"), "local", "up", "--workers", "1", "--detach"]
        both = [
            subprocess.Popen(
                command,
                env=self.cluster.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        said = [process.communicate(timeout=60)[1] for process in both]
        codes = [process.returncode for process in both]
        self.assertEqual(sorted(codes), [0, 1], said)
        self.assertIn(f"runs already in {self.state}", said[codes.index(1)])
        self.assertIn("Stop it with: starling local down, or", said[codes.index(1)])

    def test_no_process_outlives_the_supervisor(self):
        self.up("--no-restart")
        pids = self.pids()
        supervisor = int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in pids), 10, "all to end")
        # Its leftovers are no obstacle.
        self.up()

    def test_ctrl_c_stops_a_cluster_in_the_foreground(self):
        process = subprocess.Popen(
            [binary("tools/cli/starling"), "local", "up"],
            env=self.cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(process.kill)
        self.assertIn("address=", process.stdout.readline())
        pids = self.pids()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=10), 0)
        process.stdout.close()
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_ctrl_c_on_a_watch_leaves_the_job_alone(self):
        self.up()
        process = subprocess.Popen(
            [
                binary("tools/cli/starling"),
                "submit",
                "-f",
                str(self.home / "job.yaml"),
                "--watch",
                "--set",
                "stop.epochs=100000",
            ],
            env=self.cluster.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.kill)
        for line in process.stderr:
            if "samples/s" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=15), 0)
        self.assertIn("starling wait count", rest)
        self.starling("wait", "count", "--timeout", "1s", expect=7)
        self.starling("cancel", "count")
        self.starling("wait", "count", "--timeout", "30s", expect=4)


if __name__ == "__main__":
    unittest.main()
