"""A cluster of `starling local`, whose processes a test may kill."""

import os
import signal
import subprocess
from pathlib import Path

from tests.e2e.cluster import binary, wait_until


def alive(pid):
    """Whether the process runs: zombies do not."""
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class LocalCluster:
    """The one whose state lies beneath the folder `home`."""

    def __init__(self, home):
        self.state = Path(home) / "starling" / "local"
        self.environment = {**os.environ, "XDG_STATE_HOME": str(home)}
        self.environment.pop("STARLING_COORDINATOR", None)

    def starling(self, *args):
        """Runs the client, which finds the cluster by itself."""
        return subprocess.run(
            [binary("tools/cli/starling"), *args],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def up(self, *more):
        return self.starling(
            "local", "up", "--shards", "2", "--workers", "2", "--detach", *more
        )

    def pids(self):
        """Of the daemons."""
        return [int(path.read_text()) for path in (self.state / "run").glob("*.pid")]

    def kill_all(self):
        """Every process at once, the supervisor first, which would start the others again."""
        pids = self.pids()
        supervisor = int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
        if b"starling\0local\0up" not in Path(f"/proc/{supervisor}/cmdline").read_bytes():
            raise RuntimeError(f"the daemons' parent, {supervisor}, is no starling local up")
        for pid in [supervisor, *pids]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it died with its supervisor
        wait_until(lambda: not any(alive(pid) for pid in [supervisor, *pids]), 10, "all to end")
