"""Runs every command of docs/security.md, in order, as one shell would.

Ports are replaced by free ones, and programs by the built ones. A line that starts with "!" must
fail; every other must succeed.
"""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from tests.e2e.cluster import ROOT, binary, free_port

BEGIN = """
set -eu
exec 2>&1
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
"""
# What the page omits: daemons take a moment to start.
WAIT_FOR_SHARDS = """
for attempt in $(seq 300); do
  starling get shards -o json | grep -q '"ready"' && break
  sleep 0.2
done
starling get shards -o json | grep -q '"ready"'
"""


def commands():
    text = (ROOT / "docs/security.md").read_text()
    return re.findall(r"```sh\n(.*?)```", text, re.DOTALL)


class SecurityDoc(unittest.TestCase):
    def test_every_command_works(self):
        blocks = commands()
        self.assertGreaterEqual(len(blocks), 6)
        with tempfile.TemporaryDirectory() as folder:
            programs = Path(folder) / "bin"
            programs.mkdir()
            for label in (
                "server/coordinator/starling-coordinator",
                "server/shard/starling-ps",
                "worker/starling-worker",
                "tools/cli/starling",
            ):
                (programs / label.rsplit("/", 1)[1]).symlink_to(Path(binary(label)).resolve())
            (Path(folder) / "tools").symlink_to(ROOT / "tools")
            script = BEGIN
            for block in blocks:
                block = re.sub(
                    r"(?m)^! (.*)$", r"if \1; then echo 'it should have failed'; exit 1; fi", block
                )
                block = block.replace(
                    "starling get shards\n", f"{WAIT_FOR_SHARDS}starling get shards\n"
                )
                script += block.replace("127.0.0.1:7070", f"127.0.0.1:{self.port}")
            script += "echo all done\n"
            environment = {
                key: value for key, value in os.environ.items() if not key.startswith("STARLING_")
            }
            environment["PATH"] = f"{programs}:{environment['PATH']}"
            result = subprocess.run(
                ["bash", "-c", script],
                cwd=folder,
                env=environment,
                timeout=240,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("\nall done\n", result.stdout)  # then the daemons shut down
        self.assertIn("URI:starling://lab/worker", result.stdout)

    def setUp(self):
        self.port = free_port()


if __name__ == "__main__":
    unittest.main()
