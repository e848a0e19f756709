"""A job under attack on all ports: 100 stalled clients and 200 junk connections a second.

Computing is replayed as timed waits, so the machine's processors are mostly idle and the daemons'
patience is what is measured. The attack is on and off in turns, on one cluster over mutual TLS.
Prints the median step time of each turn, the processors' load without the attack and the memory
that the daemons gained, then `figure:`. Exit status 1: a bound does not hold.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e.bsp_matrix_test import write_idx  # noqa: E402
from tests.e2e.cluster import Cluster, job_file, protocol_number, wait_until  # noqa: E402
from tests.e2e.strangers import Junk, Stalled, client_context, listening_ports  # noqa: E402

RATIO_MAX = 1.10
BUSY_MAX = 0.60
GROWTH_MAX_MIB = 256
STALLED = 100
JUNK_PER_SECOND = 200
JUNK_LEAST = 10_000


def busy_share(before, after):
    """The share of processor time that was not idle between two readings."""
    total = sum(after) - sum(before)
    idle = after[3] + after[4] - before[3] - before[4]
    return 1 - idle / total


def processors():
    return [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def resident_mib(process):
    return (
        int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text()).group(1))
        / 1024
    )


def step_times(cluster, address, begin_clock):
    """Seconds between the starts of a worker's steps since `begin_clock`, and the last clock."""
    begins = {}
    for span in cluster.spans(address)["spans"]:
        if span["category"] == "push":
            clock = span["clock"]
            begins[clock] = min(begins.get(clock, 1 << 62), span["begin_us"])
    clocks = sorted(clock for clock in begins if clock > begin_clock)
    return [
        (begins[b] - begins[a]) / 1e6 for a, b in zip(clocks, clocks[1:]) if b == a + 1
    ], clocks[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8)
    arguments = parser.parse_args()
    flags = ["--lanes", "1", "--replay-compute", "0.02s,0.04s"]
    with tempfile.TemporaryDirectory() as data, Cluster(
        shards=2, workers=2, worker_flags=flags, tls=True
    ) as cluster:
        images, labels = write_idx(data, 4096)
        cluster.submit(
            job_file(
                "attacked",
                {"builtin": "mlp", "hidden": [512, 256]},
                {"train": {"idx": {"images": images, "labels": labels}}},
                consistency={"bsp": {}},
                batch={"global": 64, "microBatches": 8},
                workers={"min": 2, "max": 2},
                stop={"epochs": 100_000},
            )
        )
        cluster.wait_progress("attacked", step=20)
        worker = next(w for w in cluster.get("workers") if w["name"] == "worker-0")["address"]
        addresses = [
            ("127.0.0.1", port)
            for process in cluster.processes.values()
            for port in listening_ports(process.pid)
        ]
        admin_ports = {cluster.admin_port(name) for name in cluster.processes}
        protocol = protocol_number()
        context = client_context(cluster.directory / "tls" / "client")
        before = {name: resident_mib(process) for name, process in cluster.processes.items()}
        times, busy, grown = {False: [], True: []}, [], {}
        junk_made = junk_failed = 0
        print(
            f"ports: {len(addresses)}\n{'round':>5} {'attack':>6} {'step':>8} {'steps':>6} "
            f"{'busy':>5}"
        )
        for turn in range(2 * arguments.rounds):
            attacked = (turn + turn // 2) % 2 == 1  # off on, on off, ...
            enemies = []
            if attacked:
                enemies = [
                    Stalled(addresses, context, protocol, STALLED, admin_ports),
                    Junk(addresses, JUNK_PER_SECOND),
                ]
            _, clock = step_times(cluster, worker, -1)
            load = processors()
            time.sleep(arguments.seconds)
            share = busy_share(load, processors())
            steps, _ = step_times(cluster, worker, clock)
            for name, process in cluster.processes.items():
                grown[name] = max(grown.get(name, 0), resident_mib(process) - before[name])
            for enemy in reversed(enemies):
                enemy.close()
                junk_made += getattr(enemy, "made", 0)
                junk_failed += getattr(enemy, "failed", 0)
            times[attacked].append(statistics.median(steps))
            if not attacked:
                busy.append(share)
            print(
                f"{turn // 2:>5} {'on' if attacked else 'off':>6} "
                f"{times[attacked][-1] * 1e3:>6.1f}ms {len(steps):>6} {share:>5.2f}",
                flush=True,
            )
        state = cluster.describe("attacked")["state"]
        wait_until(
            lambda: all(d["state"] == "ready" for d in cluster.get("shards")), 30, "the shards"
        )
    ratio = statistics.median(times[True]) / statistics.median(times[False])
    growth = max(grown.values())
    print(
        f"figure: ratio of median step times {ratio:.3f}, processors {statistics.median(busy):.2f} "
        f"busy without the attack, {junk_made} junk connections and {junk_failed} that failed, "
        f"memory grew by {growth:.0f} MiB at most, job {state}"
    )
    holds = (
        ratio <= RATIO_MAX
        and statistics.median(busy) < BUSY_MAX
        and growth <= GROWTH_MAX_MIB
        and junk_made >= JUNK_LEAST
        and junk_failed <= junk_made // 100
        and state == "RUNNING"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
