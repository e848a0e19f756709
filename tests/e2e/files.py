"""Idle connections exhaust the file descriptors of coordinator and shard for a while.

Prints `figure:` at the end. Exit status 1: a daemon did not accept again in time, or its `readyz`
did not fail meanwhile.
"""

import argparse
import socket
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e.bsp_matrix_test import write_idx  # noqa: E402
from tests.e2e.cluster import Cluster, job_file, wait_until  # noqa: E402

AGAIN_MAX_SECONDS = 2
LIMIT = 400
IDLE = 700  # more than the limit: the rest wait to be accepted
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


class PoorCluster(Cluster):
    """A cluster whose coordinator and shards may have few file descriptors."""

    def _spawn(self, name, command):
        if not name.startswith("worker"):
            command = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *command]
        super()._spawn(name, command)


def answers(address, timeout):
    """Whether a new connection is served: HTTP/2's first frame arrives."""
    try:
        with socket.create_connection(address, timeout) as peer:
            peer.sendall(PREFACE)
            return len(peer.recv(9)) > 0
    except OSError:
        return False


def top_up(address, idle):
    """Idle connections, reopened when closed by the daemon."""
    for peer in list(idle):
        try:
            if peer.recv(1) == b"":
                idle.remove(peer)
                peer.close()
        except BlockingIOError:
            pass
        except OSError:
            idle.remove(peer)
            peer.close()
    while len(idle) < IDLE:
        peer = socket.socket()
        peer.settimeout(0.2)
        try:
            peer.connect(address)
        except OSError:
            peer.close()
            return
        peer.setblocking(False)
        idle.append(peer)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    flags = ["--lanes", "1", "--replay-compute", "0.02s,0.04s"]
    with tempfile.TemporaryDirectory() as data, PoorCluster(
        shards=1, workers=1, worker_flags=flags
    ) as cluster:
        images, labels = write_idx(data, 4096)
        cluster.submit(
            job_file(
                "beside",
                {"builtin": "mlp", "hidden": [64]},
                {"train": {"idx": {"images": images, "labels": labels}}},
                batch={"global": 64, "microBatches": 8},
                stop={"epochs": 100_000},
            )
        )
        cluster.wait_progress("beside", step=5)
        shard = cluster.get("shards")[0]["address"]
        ports = {"coordinator": cluster.coordinator, "shard-0": shard}
        figures, holds = [], True
        for name, address in ports.items():
            host, port = address.rsplit(":", 1)
            where = (host, int(port))
            assert answers(where, 5), f"{name} serves nobody"
            assert cluster.ask(name, "/readyz")[0] == 200
            idle = []

            def not_ready(name=name, where=where, idle=idle):
                top_up(where, idle)
                status, _, text = cluster.ask(name, "/readyz")
                return text if status == 503 else None

            why = wait_until(not_ready, 30, f"{name} to say that it is not ready")
            assert "out of file descriptors" in why, why
            asked = said_no = 0
            end = time.monotonic() + arguments.seconds
            while time.monotonic() < end:
                top_up(where, idle)
                asked += 1
                said_no += cluster.ask(name, "/readyz")[0] == 503
                assert (
                    "starling_connections_held_back 1" in cluster.ask(name, "/metrics")[2]
                    or said_no < asked
                )
                time.sleep(0.5)
            for peer in idle:
                peer.close()
            began = time.monotonic()
            wait_until(
                lambda where=where: answers(where, 2), 60, f"{name} to accept", interval=0.02
            )
            again = time.monotonic() - began
            wait_until(
                lambda name=name: cluster.ask(name, "/readyz")[0] == 200, 60, f"{name} to be ready"
            )
            ready = time.monotonic() - began
            log = (cluster.directory / f"{name}.log").read_text()
            assert "out of file descriptors" in log, f"the log of {name} does not say it"
            figures.append(
                f"{name} accepts after {again:.2f} s, is ready after {ready:.2f} s, "
                f"said no {said_no} of {asked} times"
            )
            # The admin port is asked between two checks of the connections: all but a few must
            # fail.
            holds = holds and again <= AGAIN_MAX_SECONDS and said_no >= 0.8 * asked
        status = cluster.describe("beside")
        print(f"figure: {'; '.join(figures)}; the job beside is {status['state']}")
        return 0 if holds and status["state"] == "RUNNING" else 1


if __name__ == "__main__":
    sys.exit(main())
