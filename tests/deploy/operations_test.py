"""Runs every command of docs/operations.md, in order, in one shell.

The daemons and the client are the real ones; kubectl is Debian's, against a stand-in for the API.
Of the addresses in the document only the ports are replaced, by free ones.
"""

import base64
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import manifests
from manifests import ROOT
from stand_in_api import NODE, StandInApi
from tests.e2e.cluster import binary, free_port

DEADLINE = 300
PROGRAMS = (
    "server/coordinator/starling-coordinator",
    "server/shard/starling-ps",
    "worker/starling-worker",
    "tools/cli/starling",
)


def blocks_of(document):
    """The document's blocks of shell commands."""
    return re.findall(r"^```sh\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)


class Shell:
    """One bash that runs blocks one after the other; its daemons end with it."""

    def __init__(self, directory, environment):
        self.process = subprocess.Popen(
            ["bash", "-euo", "pipefail"],
            cwd=directory,
            env=environment,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.blocks = 0

    def run(self, block):
        """Returns the output, including that of daemons meanwhile. AssertionError with the
        output if a command fails."""
        self.blocks += 1
        mark = f"@@ end of block {self.blocks}"
        self.process.stdin.write(f"{{\n{block}\n}} </dev/null\necho '{mark}'\n".encode())
        output, end = b"", time.monotonic() + DEADLINE
        while mark.encode() not in output:
            # A shell that has ended may leave daemons behind that hold its output open.
            ended = self.process.poll() is not None
            ready = select.select([self.process.stdout], [], [], 1)[0]
            data = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            output += data
            if not data and (ready or ended or time.monotonic() > end):
                what = "failed" if ready or ended else f"did not end within {DEADLINE} s"
                raise AssertionError(f"{block}\n{what}:\n{output.decode(errors='replace')}")
        return output.decode(errors="replace")

    def end(self, pids):
        """Ends the shell and the processes `pids`, which it started."""
        self.process.kill()
        self.process.wait()
        for pid in pids:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.process.stdin.close()
        self.process.stdout.close()


class Operations(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        programs = self.directory / "bin"
        programs.mkdir()
        for label in PROGRAMS:
            (programs / Path(label).name).symlink_to(binary(label))
        (programs / "kubectl").symlink_to(manifests.debian_kubectl())
        shutil.copytree(manifests.copy(), self.directory / "deploy" / "kubernetes")
        (self.directory / "tools").mkdir()
        shutil.copy(ROOT / "tools" / "make_certs.sh", self.directory / "tools")
        self.api = self.enterContext(StandInApi())
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in ("LANG", "TMPDIR", "LD_LIBRARY_PATH")
        }
        self.shell = Shell(
            self.directory,
            {
                **kept,
                "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin",
                "HOME": str(self.directory),
                "KUBECONFIG": str(self.api.kubeconfig),
                "NODE": NODE,
            },
        )
        self.addCleanup(lambda: self.shell.end(self.children()))
        self.ports = {port: str(free_port()) for port in ("7070", "7080", "7081")}
        self.secrets = None

    def children(self):
        pid = self.shell.process.pid
        try:
            return [
                int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            ]
        except FileNotFoundError:
            return []

    def run_block(self, block):
        block = re.sub(
            r"127\.0\.0\.1:(\d+)", lambda m: f"127.0.0.1:{self.ports[m.group(1)]}", block
        )
        if "port-forward" in block:
            # Tests all but the tunnel itself, since the stand-in has no streams: it asks for the
            # Service, then for its pod.
            output = self.shell.run(f"if {block}\nthen false; fi")
            self.assertIn("error upgrading connection: the stand-in has no portforward", output)
            return output
        return self.shell.run(block)

    # What must be true after a block with these words. In the document's order.

    def after_create_secret(self, _):
        for role in ("coordinator", "shard", "worker", "client"):
            secret = self.api.get("secrets", "starling", f"starling-{role}-tls")
            self.assertEqual(set(secret["data"]), {"tls.crt", "tls.key", "ca.crt"})
            path = self.directory / "certs" / role / "tls.crt"
            self.assertEqual(base64.b64decode(secret["data"]["tls.crt"]), path.read_bytes())
        certificate = self.api.get("secrets", "starling", "starling-worker-tls")["data"]["tls.crt"]
        self.assertNotEqual(certificate, self.secrets)
        self.secrets = certificate

    def after_local(self, _):
        self.assertEqual(len(self.api.names("pods", "starling")), 5)

    def after_daemons(self, _):
        self.shell.run(
            'for i in $(seq 240); do\n'
            '  if [ "$(starling get workers 2>&1 | grep -c idle)" = 2 ] &&\n'
            '    [ "$(starling get shards 2>&1 | grep -c ready)" = 1 ]; then break; fi\n'
            '  sleep 0.5\ndone'
        )

    def after_submit(self, output):
        self.assertIn("SUCCEEDED", output)

    def after_scale_workers(self, _):
        pods = [
            name
            for name in self.api.names("pods", "starling")
            if name.startswith("starling-worker-")
        ]
        self.assertEqual(len(pods), 6)
        self.workers = set(pods)

    def after_scale_shards(self, _):
        self.assertIn("starling-shard-3", self.api.names("pods", "starling"))
        self.shard = self.api.get("pods", "starling", "starling-shard-0")["metadata"]["uid"]

    def after_drain(self, _):
        pods = self.api.names("pods", "starling")
        self.assertFalse(self.workers & set(pods))  # replaced by others
        self.after_delete_shard(None)
        self.shard = self.api.get("pods", "starling", "starling-shard-0")["metadata"]["uid"]
        self.assertIn("starling-coordinator-0", pods)
        for name, budgets in self.api.evicted():
            shard = name.startswith("starling-shard-")
            self.assertEqual(budgets, ["starling-shards"] if shard else [], name)

    def after_delete_shard(self, _):
        uid = self.api.get("pods", "starling", "starling-shard-0")["metadata"]["uid"]
        self.assertNotEqual(uid, self.shard)

    def after_kill(self, output):
        pid = int((self.directory / "worker-1.pid").read_text())
        end = time.monotonic() + 60
        while pid in self.children():
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state == "Z":
                break
            self.assertLess(time.monotonic(), end, f"worker-1 did not drain: {output}")
            time.sleep(0.1)

    def after_round(self, authorities):
        certs = self.directory / "certs"
        for role in ("coordinator", "shard", "worker", "client"):
            trusted = (certs / role / "ca.crt").read_text()
            self.assertEqual(trusted.count("BEGIN CERTIFICATE"), authorities)
            self.shell.run(f"openssl verify -CAfile certs/authority.crt certs/{role}/tls.crt")
        # Until all daemons have reloaded their files.
        time.sleep(5)
        self.shell.run(
            "for i in $(seq 120); do if starling get workers; then break; fi; sleep 0.5; done"
        )

    def after_new_authority(self, _):
        self.old = (self.directory / "certs" / "authority.crt").read_text()
        self.after_round(2)

    def after_use_new(self, _):
        self.assertEqual((self.directory / "certs" / "authority.old.crt").read_text(), self.old)
        self.after_round(2)

    def after_forget_old(self, _):
        self.assertNotIn(self.old, (self.directory / "certs" / "worker" / "ca.crt").read_text())
        self.after_round(1)

    def after_delete_all(self, _):
        self.assertEqual(self.api.names("statefulsets", "starling"), [])

    CHECKS = (
        ("create secret generic", after_create_secret),
        ("component=shard", after_delete_shard),
        ("overlays/local\nkubectl -n starling wait", after_local),
        ("starling-coordinator --state", after_daemons),
        ("submit", after_submit),
        ("scale deployment", after_scale_workers),
        ("scale statefulset", after_scale_shards),
        ("kubectl drain", after_drain),
        ("delete pod starling-shard-0", after_delete_shard),
        ("kill -TERM", after_kill),
        ("--new-authority", after_new_authority),
        ("--use-new", after_use_new),
        ("--forget-old", after_forget_old),
        ("kubectl delete -k deploy/kubernetes/overlays", after_delete_all),
    )

    def test_every_command(self):
        blocks = blocks_of((ROOT / "docs" / "operations.md").read_text())
        self.assertGreater(len(blocks), 10)
        used = set()
        for block in blocks:
            output = self.run_block(block)
            for words, check in self.CHECKS:
                if words in block:
                    used.add(words)
                    check(self, output)
        self.assertEqual(used, {words for words, _ in self.CHECKS})

    def test_a_command_that_fails_is_noticed(self):
        with self.assertRaisesRegex(AssertionError, "no-such-pod"):
            self.run_block("kubectl -n starling delete pod no-such-pod")


if __name__ == "__main__":
    if manifests.debian_kubectl():
        unittest.main()
    print("SKIPPED: no kubectl 1.20: run tools/setup.sh --tests")
