"""Bad input and dead processes: a clear error, the right exit status, and no other losses."""

import copy
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, binary, free_port, job_file, parameters_sha256, wait_until
from tests.e2e.promises import check_same_bits

MLP = {"builtin": "mlp", "hidden": [32, 16]}


class Failures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.images, cls.labels = write_idx(cls.folder.name, samples=640)
        cls.data = {"train": {"idx": {"images": cls.images, "labels": cls.labels}}}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def job(self, name, **more):
        return job_file(name, MLP, copy.deepcopy(self.data), **more)

    def refused(self, cluster, job, *words):
        with self.assertRaises(RuntimeError) as refusal:
            cluster.submit(job)
        for word in words:
            self.assertIn(word, str(refusal.exception))

    def test_bad_jobs_are_refused_and_a_good_one_still_runs(self):
        with Cluster(shards=1, workers=1) as cluster:
            missing = self.job("missing")
            missing["spec"]["data"]["train"]["idx"]["images"] = "/nonexistent/images.gz"
            self.refused(cluster, missing, "exit 2", "/nonexistent/images.gz")

            short = Path(self.folder.name) / "short-labels"
            short.write_bytes(Path(self.labels).read_bytes()[:-10])
            truncated = self.job("truncated")
            truncated["spec"]["data"]["train"]["idx"]["labels"] = str(short)
            self.refused(cluster, truncated, "exit 2", "short-labels")

            magic = Path(self.folder.name) / "magic-labels"
            magic.write_bytes(b"\x00\x00\x09\x01" + Path(self.labels).read_bytes()[4:])
            wrong = self.job("magic")
            wrong["spec"]["data"]["train"]["idx"]["labels"] = str(magic)
            self.refused(cluster, wrong, "exit 2", "magic")

            shapes = job_file(
                "shapes",
                {
                    "layers": [
                        {"conv2d": {"out_channels": 4, "kernel": 30, "name": "huge"}},
                        "flatten",
                        {"linear": {"out_features": 10}},
                    ]
                },
                self.data,
            )
            self.refused(cluster, shapes, "exit 2", "huge")

            cluster.submit(self.job("good"))
            self.refused(cluster, self.job("good"), "good")
            self.assertEqual(cluster.wait("good"), 0)
            self.assertEqual(cluster.cli("describe", "job", "nobody").returncode, 5)

    def test_non_finite_loss_stops_the_job_and_names_the_place(self):
        with Cluster(shards=1, workers=1) as cluster:
            for policy in ({"bsp": {}}, {"ssp": {"staleness": 1}}, {"async": {}}):
                name = f"nan-{next(iter(policy))}"
                # A linear net: its weights grow without bound until they overflow.
                layers = [
                    "flatten",
                    {"linear": {"out_features": 16, "name": "fc1"}},
                    {"linear": {"out_features": 10, "name": "fc2"}},
                ]
                cluster.submit(
                    job_file(
                        name,
                        {"layers": layers},
                        copy.deepcopy(self.data),
                        optimizer={"sgd": {"learningRate": 100000}},
                        consistency=policy,
                        stop={"epochs": 20},
                    )
                )
                self.assertEqual(cluster.wait(name), 3)
                reason = cluster.describe(name)["reason"]
                for word in ("step", "worker-0"):
                    self.assertIn(word, reason)
                cluster.export(name)  # keeps the last good parameters
            cluster.submit(self.job("after"))
            self.assertEqual(cluster.wait("after"), 0)

    def test_a_dead_shard_fails_its_job_by_name_and_the_cluster_stays(self):
        with Cluster(shards=2, workers=2) as cluster:
            victim = self.job(
                "victim",
                stop={"epochs": 100000},
                workers={"min": 1, "max": 2},
                consistency={"ssp": {"staleness": 2}},
                durability="none",
            )
            victim["spec"]["maxRestarts"] = 0
            cluster.submit(victim)
            cluster.wait_progress("victim", step=5)
            cluster.kill("shard-1")
            self.assertEqual(cluster.wait("victim", 30), 3)
            reason = cluster.describe("victim")["reason"]
            self.assertIn("shard-1", reason)
            self.assertIn("does not begin again by itself (maxRestarts: 0)", reason)
            cluster.start_shard("shard-1")
            cluster.wait_registered(2, 2)
            cluster.submit(self.job("next", workers={"min": 2, "max": 2}))
            self.assertEqual(cluster.wait("next"), 0)

    def test_a_shard_that_dies_changes_no_bit(self):
        digests = {}
        for killed in ("", "shard-0", "shard-1"):
            with Cluster(shards=2, workers=2) as cluster:
                job = self.job(
                    "replicated",
                    stop={"epochs": 60},
                    workers={"min": 2, "max": 2},
                    durability="replicated",
                )
                cluster.submit(job)
                cluster.wait_whole("replicated")
                if killed:
                    cluster.wait_progress("replicated", step=30)
                    cluster.kill(killed)
                    status = wait_until(
                        lambda: int(cluster.describe("replicated").get("failovers", 0)) > 0
                        and cluster.describe("replicated"),
                        30,
                        "the other shard to take over",
                    )
                    self.assertEqual(status["state"], "RUNNING", status.get("reason"))
                    # By the connections that broke, not by silence.
                    log = cluster.log("coordinator")
                    self.assertIn("has not answered twice within 300ms", log)
                    self.assertIn(
                        " has no second copy: no other shard is live", status["copiesTrouble"]
                    )
                    cluster.start_shard(killed)
                self.assertEqual(cluster.wait("replicated", 120), 0)
                digests[killed] = parameters_sha256(cluster.export("replicated"))
        print("figure: " + ", ".join(f"{k or 'none'} killed: {d[:16]}" for k, d in digests.items()))
        check_same_bits(digests)

    def test_a_coordinator_that_dies_and_comes_back_changes_no_bit(self):
        def run(kill):
            with Cluster(shards=2, workers=2) as cluster:
                cluster.submit(
                    self.job("steady", stop={"epochs": 60}, workers={"min": 2, "max": 2})
                )
                if kill:
                    before = cluster.wait_progress("steady", step=30)
                    cluster.kill("coordinator")
                    cluster.start_coordinator()
                    after = wait_until(
                        lambda: cluster.cli("describe", "job", "steady").returncode == 0
                        and cluster.describe("steady"),
                        20,
                        "the coordinator to answer",
                    )
                    self.assertGreater(int(after["generation"]), int(before["generation"]))
                self.assertEqual(cluster.wait("steady", 120), 0)
                return parameters_sha256(cluster.export("steady"))

        killed, steady = run(kill=True), run(kill=False)
        print(f"figure: {killed[:16]}... with the kill, {steady[:16]}... without")
        check_same_bits({"killed": killed, "steady": steady})

    def test_sigterm_in_the_middle_of_a_step(self):
        with Cluster(shards=1, workers=2) as cluster:
            cluster.submit(
                self.job(
                    "drained",
                    stop={"epochs": 100000},
                    workers={"min": 1, "max": 2},
                    consistency={"ssp": {"staleness": 2}},
                )
            )
            cluster.wait_progress("drained", step=20)
            cluster.kill("worker-1", signal.SIGTERM)
            self.assertEqual(cluster.exit_status("worker-1"), 0)
            status = cluster.describe("drained")
            cluster.wait_progress("drained", step=int(status["step"]) + 20)
            self.assertEqual(cluster.cli("cancel", "drained").returncode, 0)
            self.assertEqual(cluster.wait("drained"), 4)
            for name in ("shard-0", "coordinator"):
                begin = time.monotonic()
                cluster.kill(name, signal.SIGTERM)
                self.assertEqual(cluster.exit_status(name), 0)
                print(f"{name} stopped in {time.monotonic() - begin:.1f} s")

    def test_each_shard_in_turn_is_asked_to_stop(self):
        with Cluster(shards=3, workers=2) as cluster:
            cluster.submit(
                self.job(
                    "goes-on",
                    stop={"epochs": 100000},
                    workers={"min": 1, "max": 2},
                    consistency={"ssp": {"staleness": 2}},
                )
            )
            for name in ("shard-0", "shard-1", "shard-2"):
                cluster.wait_whole("goes-on")
                cluster.kill(name, signal.SIGTERM)
                self.assertEqual(cluster.exit_status(name, 60), 0)
                self.assertIn("drained: nothing counts on this shard", cluster.log(name))
                status = cluster.wait_whole("goes-on")
                cluster.wait_progress("goes-on", step=int(status["step"]) + 20)
                (shard,) = [s for s in cluster.get("shards") if s["name"] == name]
                self.assertEqual(shard["state"], "left")
                cluster.start_shard(name)
                cluster.wait_registered(3, 2)
            self.assertEqual(cluster.describe("goes-on")["state"], "RUNNING")

    def test_a_shard_with_the_only_copy_waits_until_it_is_asked_again(self):
        with Cluster(shards=2, workers=1) as cluster:
            cluster.submit(
                self.job("alone", stop={"epochs": 100000}, consistency={"ssp": {"staleness": 2}})
            )
            cluster.wait_whole("alone")
            cluster.kill("shard-1")
            wait_until(
                lambda: cluster.describe("alone").get("failovers"), 30, "shard-0 to lead all"
            )
            cluster.kill("shard-0", signal.SIGTERM)

            def drains():
                (shard,) = [s for s in cluster.get("shards") if s["name"] == "shard-0"]
                return shard["state"] == "draining" and "no whole copy" in shard.get("drain", "")

            wait_until(drains, 30, "shard-0 to say what it waits for")
            begin = time.monotonic()
            cluster.kill("shard-0", signal.SIGTERM)
            self.assertEqual(cluster.exit_status("shard-0"), 1)
            self.assertLess(time.monotonic() - begin, 5)
            self.assertIn("no whole copy elsewhere yet", cluster.log("shard-0"))

    def test_shards_that_are_asked_to_stop_together_say_what_is_lost(self):
        with Cluster(shards=2, workers=1) as cluster:
            job = self.job("lost", stop={"epochs": 100000})
            job["spec"]["maxRestarts"] = 0  # else it begins again
            cluster.submit(job)
            cluster.wait_whole("lost")
            names = ("shard-0", "shard-1")
            for name in names:
                cluster.kill(name, signal.SIGTERM)
            statuses = {name: cluster.exit_status(name) for name in names}
            # The first may have handed over all before the other was asked.
            last = max(names, key=lambda name: statuses[name])
            self.assertEqual(statuses[last], 1, statuses)
            self.assertIn("not drained: each other shard has left or drains", cluster.log(last))
            self.assertEqual(cluster.wait("lost"), 3)

    def test_sigterm_to_all_at_once(self):
        # No daemon is left to answer another: each gives up in time. A shard may have been handed
        # the only copy of something just before, which it keeps until it is asked again.
        for policy in ({"bsp": {}}, {"ssp": {"staleness": 2}}):
            with Cluster(shards=2, workers=2) as cluster:
                cluster.submit(
                    self.job(
                        "cut",
                        stop={"epochs": 100000},
                        workers={"min": 2, "max": 2},
                        consistency=policy,
                    )
                )
                cluster.wait_progress("cut", step=20)
                shards, others = ("shard-0", "shard-1"), ("coordinator", "worker-0", "worker-1")
                for again, names in ((False, others), (True, shards)):
                    begin = time.monotonic()
                    for name in shards if again else (*others, *shards):
                        cluster.kill(name, signal.SIGTERM)
                    for name in names:
                        cluster.exit_status(name)
                        took = time.monotonic() - begin
                        print(f"figure: {name} stopped after {took:.1f} s")
                        self.assertLess(took, 5, name)

    def test_a_port_in_use_and_an_open_address_are_refused(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for listen, word, status in (
                (f"127.0.0.1:{port}", str(port), 1),
                ("0.0.0.0:0", "loopback", 2),
            ):
                with tempfile.TemporaryDirectory() as state:
                    result = subprocess.run(
                        [
                            binary("server/coordinator/starling-coordinator"),
                            "--listen",
                            listen,
                            "--state",
                            state,
                        ],
                        capture_output=True,
                        text=True,
                        timeout=20,
                        check=False,
                    )
                self.assertEqual(result.returncode, status, result.stderr)
                self.assertIn(word, result.stderr)

    def test_a_coordinator_that_is_not_there(self):
        address = f"127.0.0.1:{free_port()}"
        result = subprocess.run(
            [
                binary("worker/starling-worker"),
                "--coordinator",
                address,
                "--name",
                "alone",
                "--coordinator-timeout",
                "2s",
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        self.assertEqual(result.returncode, 1)
        for word in (address, "starling-coordinator"):
            self.assertIn(word, result.stderr)
        client = subprocess.run(
            [binary("tools/cli/starling"), "get", "jobs", "--coordinator", address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(client.returncode, 6)
        self.assertIn(address, client.stderr)


if __name__ == "__main__":
    unittest.main()
