"""A cluster in which every daemon has its own network and its own view of files, over TLS.

Each daemon runs in a network namespace with one address, on a bridge in a namespace of its own, and
in a mount namespace that shows its own folder at /srv/starling and nothing of the others. Only the
workers' folders hold the data. The host's network is not touched. Needs root, ip and unshare; skips
itself, with a reason, where a namespace cannot be made.
"""

import itertools
import os
import shutil
import subprocess
import unittest

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, binary, job_file, wait_until

HOME = "/srv/starling"  # in every daemon's view
PORT = 7070


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)


def why_not():
    """Why this machine cannot run the test; empty: it can."""
    if os.geteuid() != 0:
        return "not root"
    for program in ("ip", "unshare", "mount"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    probe = f"st{os.getpid()}p"
    try:
        run("ip", "netns", "add", probe)
        run("ip", "-n", probe, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", probe, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        run(
            "ip",
            "netns",
            "exec",
            probe,
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "mount",
            "-t",
            "tmpfs",
            "none",
            "/mnt",
        )
    except subprocess.SubprocessError as error:
        return f"no namespaces here: {getattr(error, 'stderr', '') or error}"
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, timeout=60)
    return ""


class NamespaceCluster(Cluster):
    """Every daemon, and the client, in its own namespaces."""

    numbers = itertools.count()  # of this process's clusters

    def __init__(self, **more):
        super().__init__(tls=True, **more)
        self.prefix = f"st{os.getpid()}-{next(self.numbers)}"
        self.namespaces = []
        self.addresses = {}
        self.cut_off = set()

    def __enter__(self):
        try:
            self._add_namespace("sw")
            run("ip", "-n", self._namespace("sw"), "link", "add", "br0", "type", "bridge")
            run("ip", "-n", self._namespace("sw"), "link", "set", "br0", "up")
            return super().__enter__()
        except BaseException:
            self._remove_namespaces()
            raise

    def stop(self, keep=False):
        for name in list(self.cut_off):
            self.connect(name)
        super().stop(keep)
        self._remove_namespaces()

    def cut(self, name):
        """From now on nothing reaches the daemon's host, or comes from there."""
        self.cut_off.add(name)
        self._set_link(name, "down")

    def connect(self, name):
        """Ends a cut."""
        self._set_link(name, "up")
        self.cut_off.discard(name)

    def _set_link(self, name, state):
        run("ip", "-n", self._namespace("sw"), "link", "set", self._port(name), state)

    def _port(self, name):
        """The host's end on the bridge."""
        return f"p{self.addresses[name].rsplit('.', 1)[1]}"

    def _namespace(self, name):
        return f"{self.prefix}-{name}"

    def _add_namespace(self, name):
        run("ip", "netns", "add", self._namespace(name))
        self.namespaces.append(self._namespace(name))

    def _remove_namespaces(self):
        while self.namespaces:
            subprocess.run(
                ["ip", "netns", "del", self.namespaces.pop()], capture_output=True, timeout=60
            )

    def _add_host(self, name, role):
        """Makes a network with one address, and a folder with the role's certificates."""
        if name in self.addresses:
            return
        number = len(self.addresses) + 1
        self.addresses[name] = f"10.77.0.{number}"
        space, switch = self._namespace(name), self._namespace("sw")
        self._add_namespace(name)
        run(
            "ip",
            "link",
            "add",
            "eth0",
            "netns",
            space,
            "type",
            "veth",
            "peer",
            "name",
            self._port(name),
            "netns",
            switch,
        )
        run("ip", "-n", switch, "link", "set", self._port(name), "master", "br0", "up")
        run("ip", "-n", space, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            run("ip", "-n", space, "link", "set", link, "up")
        folder = self.home_of(name)
        folder.mkdir(parents=True)
        shutil.copytree(self.directory / "tls" / role, folder / "tls")

    def home_of(self, name):
        return self.directory / "homes" / name

    def inside(self, name, command):
        """The command as a process of that host, with its network and its folder at HOME only."""
        view = (
            f'mount -t tmpfs none /srv && mkdir {HOME} && mount --bind "$1" {HOME} && '
            f'mount -t tmpfs none "$2" && cd {HOME} && shift 2 && exec "$@"'
        )
        return [
            "ip",
            "netns",
            "exec",
            self._namespace(name),
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            view,
            "sh",
            str(self.home_of(name)),
            str(self.directory),
            *command,
        ]

    def tls_flags(self, role):
        folder = f"{HOME}/tls"
        return [
            "--tls-cert",
            f"{folder}/tls.crt",
            "--tls-key",
            f"{folder}/tls.key",
            "--tls-ca",
            f"{folder}/ca.crt",
        ]

    def make_certificates(self, *more):
        super().make_certificates(*more)
        self._add_host("client", "client")

    def start_coordinator(self):
        self._add_host("coordinator", "coordinator")
        self.coordinator = f"{self.addresses['coordinator']}:{PORT}"
        self._spawn(
            "coordinator",
            self.inside(
                "coordinator",
                [
                    binary("server/coordinator/starling-coordinator"),
                    "--listen",
                    f"0.0.0.0:{PORT}",
                    "--advertise-address",
                    self.addresses["coordinator"],
                    "--state",
                    f"{HOME}/state",
                    *self.tls_flags("coordinator"),
                    *self.flags_of.get("coordinator", []),
                ],
            ),
        )
        wait_until(lambda: self.cli("get", "jobs").returncode == 0, 60, "the coordinator")

    def _start_daemon(self, name, role, label, more):
        self._add_host(name, role)
        self._spawn(
            name,
            self.inside(
                name,
                [
                    binary(label),
                    "--coordinator",
                    self.coordinator,
                    "--name",
                    name,
                    "--listen",
                    "0.0.0.0:0",
                    "--advertise-address",
                    self.addresses[name],
                    *self.tls_flags(role),
                    *more,
                    *self.flags_of.get(name, []),
                ],
            ),
        )

    def as_client(self, command):
        return self.inside("client", command)

    def client_file(self, name):
        return self.home_of("client") / name, f"{HOME}/{name}"


class Namespaces(unittest.TestCase):
    def setUp(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)

    def test_trains_to_success(self):
        with NamespaceCluster(shards=2, workers=2) as cluster:
            for name in ("worker-0", "worker-1"):
                write_idx(cluster.home_of(name), 120)
            # No daemon sees another's files or addresses.
            for name in ("client", "coordinator", "shard-0", "worker-0"):
                seen = run(
                    *cluster.inside(
                        name, ["sh", "-c", f"ls {cluster.directory}; ls {HOME}; ip -o -4 a"]
                    )
                ).stdout
                self.assertNotIn("homes", seen)
                self.assertIn("tls", seen)
                self.assertIn(cluster.addresses[name], seen)
                self.assertEqual(
                    sum(address in seen for address in cluster.addresses.values()), 1, seen
                )
            cluster.submit(self.job())
            self.assertEqual(cluster.wait("apart"), 0)
            self.assertIn("no shared memory with shard", cluster.log("worker-0"))
            status = cluster.describe("apart")
            self.assertEqual(status["state"], "SUCCEEDED")
            self.assertEqual(int(status["workers"]), 0)
            addresses = {
                entry["address"].split(":")[0]
                for kind in ("shards", "workers")
                for entry in cluster.get(kind)
            }
            self.assertEqual(
                addresses,
                {
                    cluster.addresses[name]
                    for name in ("shard-0", "shard-1", "worker-0", "worker-1")
                },
            )
            self.assertTrue(cluster.export("apart"))

    def job(self):
        data = {"train": {"idx": {"images": f"{HOME}/images.gz", "labels": f"{HOME}/labels"}}}
        return job_file(
            "apart", {"builtin": "mlp"}, data, workers={"min": 2, "max": 2}, stop={"epochs": 2}
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
