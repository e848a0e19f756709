"""Real processes over mutual TLS: training, certificate rotation, and callers that are refused."""

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import unittest

from tests.e2e.cluster import Cluster, binary, floats, job_file, wait_until
from tests.e2e.promises import check_counted
from tests.e2e.strangers import connect, listening_ports

SAMPLES = 4096
ROTATIONS = 3
IDLE = 1000
EPOCHS = 4


def counter_job(name, epochs=1):
    return job_file(
        name,
        {"builtin": "counter"},
        {"train": {"counter": {"samples": SAMPLES}}},
        batch={"global": 8, "microBatches": 4},
        workers={"min": 2, "max": 2},
        optimizer={"sgd": {"learningRate": 1}},
        consistency={"ssp": {"staleness": 2}},
        stop={"epochs": epochs},
    )


def failed_pushes(cluster):
    """What the workers log of broken streams and refused requests."""
    return [
        line
        for log in cluster.directory.glob("worker-*.log")
        for line in log.read_text(errors="replace").splitlines()
        if "stream to shard" in line or "refuses" in line or "registers anew" in line
    ]


class NewLinks:
    """Lists the shards, over a new link each time, until it is stopped."""

    def __init__(self, cluster):
        self.made = 0
        self.failed = []
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            result = self._cluster.cli("get", "shards")
            if result.returncode == 0:
                self.made += 1
            else:
                self.failed.append(result.stderr)
            self._stop.wait(0.1)

    def stop(self):
        self._stop.set()
        self._thread.join(180)


def wait_taken_up(cluster, rotation):
    logs = [
        cluster.directory / f"{name}.log"
        for name in ("coordinator", "shard-0", "shard-1", "worker-0")
    ]
    words = "took up new certificates"
    wait_until(
        lambda: all(log.read_text().count(words) > rotation for log in logs),
        60,
        "every daemon to take up its new certificates",
    )


class Protected(unittest.TestCase):
    def test_certificates_are_rotated_under_load(self):
        with Cluster(shards=2, workers=2, tls=True) as cluster:
            cluster.submit(counter_job("counter", EPOCHS))
            links = NewLinks(cluster)
            self.addCleanup(links.stop)
            for rotation in range(ROTATIONS):
                cluster.wait_progress(
                    "counter", step=(rotation + 1) * EPOCHS * SAMPLES // 8 // (ROTATIONS + 2)
                )
                cluster.make_certificates()
                # One worker leaves in good order and another joins before all have the new
                # certificates.
                cluster.kill("worker-1", signal.SIGTERM)
                self.assertEqual(cluster.exit_status("worker-1", 30), 0)
                cluster.start_worker("worker-1")
                wait_taken_up(cluster, rotation)
            self.assertEqual(cluster.wait("counter"), 0)
            check_counted(floats(cluster.export("counter")["counter"]), EPOCHS, SAMPLES)
            links.stop()
            failed = failed_pushes(cluster)
            self.assertEqual(failed, [])
            self.assertEqual(links.failed, [])
            self.assertGreater(links.made, ROTATIONS)
            print(
                f"\nfigure: {ROTATIONS} rotations while {EPOCHS * SAMPLES // 8} steps were pushed: "
                f"{len(failed)} failed pushes; {links.made} clients' links and {ROTATIONS} "
                f"workers' meanwhile, {len(links.failed)} failed"
            )
            # A daemon that starts now works with the new certificates.
            cluster.start_worker("worker-9")
            wait_until(
                lambda: any(
                    w["name"] == "worker-9" and w["state"] == "idle" for w in cluster.get("workers")
                ),
                60,
                "another worker",
            )

    def test_who_has_no_certificate_of_a_client_gets_nothing(self):
        with Cluster(shards=1, workers=0, tls=True) as cluster:
            self.assertEqual(cluster.get("shards")[0]["state"], "ready")
            client = [
                binary("tools/cli/starling"),
                "get",
                "shards",
                "--coordinator",
                cluster.coordinator,
            ]

            def refused(flags, *, says):
                result = subprocess.run(
                    [*client, *flags], capture_output=True, text=True, timeout=120
                )
                self.assertNotEqual(result.returncode, 0, flags)
                self.assertIn(says, result.stderr)

            refused([], says="as a port with TLS does")
            with Cluster(shards=0, workers=0) as plain:
                client[-1] = plain.coordinator
                refused(cluster.tls_flags("client"), says="speaks without TLS")
            client[-1] = cluster.coordinator
            refused(
                cluster.tls_flags("worker"),
                says="expected a certificate of starling://starling/client, "
                "got one of starling://starling/worker",
            )
            refused([*cluster.tls_flags("client"), "--cluster", "other"], says="--cluster")
            refused(cluster.tls_flags("client")[:2], says="belong together")
            refused([*cluster.tls_flags("client"), "--insecure"], says="contradicts")
            self.assertEqual(cluster.get("shards")[0]["state"], "ready")

    def test_a_thousand_idle_connections_on_each_port(self):
        with Cluster(shards=1, workers=2, tls=True) as cluster, contextlib.ExitStack() as idle:
            ports = [
                port
                for process in cluster.processes.values()
                for port in listening_ports(process.pid)
            ]
            self.assertGreaterEqual(len(ports), 4)
            wanted = len(ports) * IDLE + 100
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if hard < wanted:
                self.skipTest(f"{wanted} open files are needed, and {hard} are allowed")
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
            cluster.submit(counter_job("counter", 2))
            for port in ports:
                for _ in range(IDLE):
                    idle.enter_context(connect(("127.0.0.1", port)))
            self.assertEqual(cluster.wait("counter"), 0)
            check_counted(floats(cluster.export("counter")["counter"]), 2, SAMPLES)
            self.assertEqual(failed_pushes(cluster), [])
            print(
                f"\nfigure: {IDLE} idle connections on each of {len(ports)} ports, and the job "
                "succeeded"
            )

    def test_insecure_is_said_in_every_status(self):
        flags = {name: ["--insecure"] for name in ("shard-0", "worker-0")}
        with Cluster(shards=1, workers=1, flags_of=flags) as cluster:
            cluster.submit(
                job_file(
                    "job",
                    {"builtin": "counter"},
                    {"train": {"counter": {"samples": 64}}},
                    batch={"global": 8, "microBatches": 4},
                    optimizer={"sgd": {"learningRate": 1}},
                )
            )
            for command in (
                ["get", "jobs"],
                ["get", "workers"],
                ["get", "shards"],
                ["describe", "job", "job"],
                ["describe", "shard", "shard-0"],
                ["describe", "worker", "worker-0"],
            ):
                result = cluster.cli(*command)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("warning: shard-0, worker-0 started with --insecure", result.stderr)
            for name in flags:
                self.assertIn(
                    "started with --insecure", (cluster.directory / f"{name}.log").read_text()
                )


class Settings(unittest.TestCase):
    def run_daemon(self, label, *flags, **variables):
        return subprocess.run(
            [binary(label), *flags],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **variables},
        )

    def test_flags_then_environment_then_defaults(self):
        result = self.run_daemon(
            "server/shard/starling-ps",
            "--name",
            "ps-0",
            "--print-config",
            STARLING_COORDINATOR="127.0.0.1:9",
            STARLING_NAME="other",
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        origins = {
            line.split()[0]: (line.split()[1], line.split()[-1])
            for line in result.stdout.splitlines()
        }
        self.assertEqual(origins["name"], ("ps-0", "--name"))
        self.assertEqual(origins["coordinator"], ("127.0.0.1:9", "STARLING_COORDINATOR"))
        self.assertEqual(origins["listen"], ("127.0.0.1:0", "default"))

    def test_the_client_has_the_same(self):
        result = self.run_daemon("tools/cli/starling", "--print-config", STARLING_CLUSTER="prod")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^cluster +prod +STARLING_CLUSTER$")

    def test_beyond_loopback_only_with_tls(self):
        for label, flags in (
            ("server/coordinator/starling-coordinator", ["--state", "/nonexistent"]),
            ("server/shard/starling-ps", ["--name", "a", "--coordinator", "127.0.0.1:1"]),
            ("worker/starling-worker", ["--name", "a", "--coordinator", "127.0.0.1:1"]),
        ):
            result = self.run_daemon(label, *flags, "--listen", "0.0.0.0:0")
            self.assertEqual(result.returncode, 2, label)
            self.assertIn("without TLS only loopback addresses", result.stderr)

    def test_unknown_variables_are_warned_of(self):
        with Cluster(shards=0, workers=0) as cluster:
            cluster.kill("coordinator")
            os.environ["STARLING_LISTN"] = "0.0.0.0:1"
            try:
                cluster.start_coordinator()
            finally:
                del os.environ["STARLING_LISTN"]
            log = (cluster.directory / "coordinator.log").read_text()
            self.assertIn("STARLING_LISTN is set, and no setting has that name", log)
            self.assertEqual(log.count("no setting has that name"), 1, log)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rotations", type=int, default=ROTATIONS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments, rest = parser.parse_known_args()
    ROTATIONS, EPOCHS = arguments.rotations, arguments.epochs
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
