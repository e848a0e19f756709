"""Clusters whose worker computes nothing (load_worker.h), and what their turns are compared with:
raw TCP, and gRPC with nothing on top.
"""

import argparse
import json
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path

from tests.e2e.cluster import binary, job_file
from tools.bench.turns import Turn

WORKER = "worker-0"
WORKER_BINARY = "tools/bench/load_worker"
JOB = "loaded"
MIB = 1 << 20
MODEL_BYTES = 64 * MIB  # and as much for the momentum
SIDES = {1: 512, 4: 1024, 16: 2048, 64: 4096}  # MiB of a tensor -> its rows and columns
SETTLE_SECONDS = 0.2  # a backup applies after the acknowledgement
ANSWER_SECONDS = 120
CHOOSING_ROUNDS = 3
TICKS = os.sysconf("SC_CLK_TCK")


class Loaded:
    """A cluster whose worker is load_worker: Loaded goes before the class of the cluster."""

    def _spawn(self, name, command):
        if name != WORKER:
            super()._spawn(name, command)
            return
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.directory,
            )

    def begin(self, tensor_mib, **spec):
        """Submits the job, with what `spec` adds to it, and waits until its load can begin."""
        side = SIDES[tensor_mib]
        model = {
            "builtin": "mlp",
            "hidden": [side] * (MODEL_BYTES // (tensor_mib * MIB)),
        }
        job = job_file(
            JOB,
            model,
            {"train": {"csv": {"path": "/made/by/the/worker"}}},
            batch={"global": 1, "microBatches": 1},
            optimizer={"momentum": {"learningRate": 1e-6}},
            consistency={"async": {}},
        )
        job["spec"].update(spec)
        self.submit(job)
        self._answer()

    def _answer(self):
        process = self.processes[WORKER]
        late = threading.Timer(ANSWER_SECONDS, process.kill)
        late.start()
        line = process.stdout.readline()
        late.cancel()
        if not line:
            raise RuntimeError(f"load_worker did not answer: {self.log(WORKER)[-2000:]}")
        return json.loads(line)

    def _cpu_seconds(self):
        """Of all daemons and the worker."""
        total = 0
        for process in self.processes.values():
            stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
            user, system = stat.rsplit(")", 1)[1].split()[11:13]
            total += int(user) + int(system)
        return total / TICKS

    def run(self, traffic, seconds):
        """A turn of push, skipped, pull or both."""
        before = self._cpu_seconds()
        worker = self.processes[WORKER]
        worker.stdin.write(f"{traffic} {seconds}\n")
        worker.stdin.flush()
        answer = self._answer()
        time.sleep(SETTLE_SECONDS)
        return Turn(answer["bytes"], answer["seconds"], self._cpu_seconds() - before)


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process, seconds):
    """What it prints at its end, after a turn of so many seconds."""
    try:
        output, _ = process.communicate(timeout=seconds + ANSWER_SECONDS)
    finally:
        process.kill()
    if process.returncode != 0:
        raise RuntimeError(f"{process.args} ended with status {process.returncode}")
    return json.loads(output)


def connection(ends, program, at_receiver, at_sender, seconds):
    """One turn over one connection. `at_...`: more arguments. Bytes are those of both receivers,
    where both receive."""
    before_receiver, before_sender, address = ends
    program = binary(f"tools/bench/{program}")
    running = [start([*before_receiver, program, "receive", address, *map(str, at_receiver)])]
    try:
        port = running[0].stdout.readline().strip()
        send = [*before_sender, program, "send", address, port, str(seconds), *map(str, at_sender)]
        running.append(start(send))
        answers = [finish(process, seconds) for process in reversed(running)]
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()
    return Turn(
        sum(answer["bytes"] for answer in answers),
        max(answer["seconds"] for answer in answers),
        sum(answer["cpu"] for answer in answers),
    )


def raw_tcp(ends, variant, seconds):
    """From one side to the other. `variant`: see best_tcp."""
    return connection(ends, "raw_tcp", variant, [], seconds)


def raw_tcp_both(ends, variant, seconds):
    """Both ways at once."""
    return connection(ends, "raw_tcp", [*variant, seconds], variant, seconds)


def raw_grpc(ends, seconds):
    return connection(ends, "raw_grpc", [], [], seconds)


def raw_ring(seconds):
    """Through shared memory, from one process to another."""
    answer = finish(start([binary("tools/bench/raw_ring"), str(seconds)]), seconds)
    return Turn(answer["bytes"], answer["seconds"], answer["cpu"])


def best_tcp(ends, seconds, turn=raw_tcp):
    """The fastest way to receive: (where to, the receive buffer's bytes)."""
    variants = [(to, buffer) for to in ("place", "stream") for buffer in (0, 512 << 10)]
    rates = {variant: [] for variant in variants}
    for _ in range(CHOOSING_ROUNDS):
        for variant in variants:
            rates[variant].append(turn(ends, variant, seconds).rate)
    medians = {variant: statistics.median(found) for variant, found in rates.items()}
    print(
        "raw TCP, GB/s: "
        + ", ".join(f"{to} {buffer}: {medians[to, buffer]:.2f}" for to, buffer in variants),
        flush=True,
    )
    return max(medians, key=medians.get)


def positive(text):
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
    return number


def take_turns(contenders, rounds):
    """Turns of all contenders, by round; `contenders`: name -> a function that takes a turn."""
    found = []
    print(f"{'round':>5} " + " ".join(f"{who:>11}" for who in contenders) + "   GB/s", flush=True)
    for i in range(rounds):
        order = list(contenders) if i % 2 == 0 else list(reversed(contenders))
        found.append({who: contenders[who]() for who in order})
        found[-1] = {who: found[-1][who] for who in contenders}
        print(f"{i:>5} " + " ".join(f"{t.rate:>11.3f}" for t in found[-1].values()), flush=True)
    return found
