"""A real cluster on loopback for end-to-end tests: real daemons, real kills.

    with Cluster(shards=2, workers=3) as cluster:
        cluster.submit(job)                      # a dict in the job file's schema
        cluster.kill("worker-1")                 # kill -9
        assert cluster.wait("job") == 0

Each daemon is a child process with its own log file under `cluster.directory`, which is kept, and
printed, when the block ends with an exception; `cluster.keep = True` keeps it in any case. No
process survives the block. Standard library only.
"""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Timeout(Exception):
    """A condition did not become true in time; names it and the last value seen."""


def wait_until(condition, timeout, what, interval=0.05):
    """Polls `condition` until it returns something true, and returns that."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Timeout(f"waited {timeout} s for {what}; last seen: {value!r}")
        time.sleep(interval)


def binary(label):
    """The path of a built binary: in a Bazel test that of its `data`, else in bazel-bin."""
    runfiles = os.environ.get("TEST_SRCDIR")
    path = (Path(runfiles) / "starling" if runfiles else ROOT / "bazel-bin") / label
    if path.exists():
        return str(path)
    if runfiles:
        raise FileNotFoundError(f"{label} is not in the test's data")
    raise FileNotFoundError(f"{label} is not built: bazel build //{label.rsplit('/', 1)[0]}:all")


def protocol_number():
    """The protocol version that the daemons were built with."""
    version = subprocess.run(
        [binary("server/shard/starling-ps"), "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(re.search(r"protocol (\d+)", version.stdout).group(1))


class Cluster:
    """Starts on entry, stops on exit. Not thread-safe."""

    def __init__(
        self,
        shards=1,
        workers=1,
        worker_flags=(),
        flags_of=None,
        tls=False,
        worker_binary="worker/starling-worker",
        checkpoints=False,
    ):
        self.shards = shards
        self.workers = workers
        self.worker_flags = list(worker_flags)
        self.flags_of = flags_of or {}  # name -> additional flags
        self.tls = tls  # mutual TLS, with certificates made for this cluster
        self.worker_binary = worker_binary
        self.checkpoints = checkpoints  # a folder: False: none; True: one of this cluster's own
        self.processes = {}
        self.keep = False
        self.directory = Path(tempfile.mkdtemp(prefix="starling-e2e-"))
        if checkpoints is True:
            self.checkpoints = self.directory / "checkpoints"
            self.checkpoints.mkdir()
        self.coordinator = None

    # ---- Lifetime ---------------------------------------------------------------------------

    def __enter__(self):
        try:
            if self.tls:
                self.make_certificates()
            self.start_coordinator()
            for i in range(self.shards):
                self.start_shard(f"shard-{i}")
            for i in range(self.workers):
                self.start_worker(f"worker-{i}")
            self.wait_registered(self.shards, self.workers)
        except BaseException as e:
            self.stop(keep=True)
            raise RuntimeError(f"the cluster did not start; logs: {self.directory}") from e
        return self

    def __exit__(self, kind, error, trace):
        self.stop(keep=self.keep or kind is not None)
        if kind is not None:
            print(f"cluster logs: {self.directory}")
            for log in sorted(self.directory.glob("*.log")):
                print(f"--- {log.name} (last lines)")
                print("\n".join(log.read_text(errors="replace").splitlines()[-25:]))

    def stop(self, keep=False):
        """Stops workers first, so that they leave in good order; the coordinator last."""
        for prefix in ("worker", "shard", "coordinator", ""):
            group = [
                p
                for name, p in self.processes.items()
                if name.startswith(prefix) and p.poll() is None
            ]
            for process in group:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            # A shard with the only copy of something waits for others: the second signal ends that.
            begin = time.monotonic()
            for end, then in ((begin + 3, "terminate"), (begin + 10, "kill")):
                for process in group:
                    try:
                        process.wait(max(0.1, end - time.monotonic()))
                    except subprocess.TimeoutExpired:
                        getattr(process, then)()
            for process in group:
                process.wait()
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _spawn(self, name, command):
        log = open(self.directory / f"{name}.log", "ab")
        self.processes[name] = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory
        )
        log.close()

    # ---- Certificates ------------------------------------------------------------------------

    def make_certificates(self, *more):
        """Issues new ones for all roles, replacing existing ones."""
        subprocess.run(
            [str(ROOT / "tools/make_certs.sh"), str(self.directory / "tls"), *more],
            check=True,
            capture_output=True,
        )

    def tls_flags(self, role):
        if not self.tls:
            return []
        folder = self.directory / "tls" / role
        return [
            "--tls-cert",
            str(folder / "tls.crt"),
            "--tls-key",
            str(folder / "tls.key"),
            "--tls-ca",
            str(folder / "ca.crt"),
        ]

    def start_coordinator(self):
        """Starts it, or restarts it with its state and its old port."""
        port_file = self.directory / "coordinator.port"
        listen = self.coordinator or "127.0.0.1:0"
        port_file.unlink(missing_ok=True)
        self._spawn(
            "coordinator",
            [
                binary("server/coordinator/starling-coordinator"),
                "--listen",
                listen,
                "--state",
                str(self.directory / "state"),
                "--port-file",
                str(port_file),
                "--tensorboard-root",
                "/",
                *self._checkpoint_flags(),
                *self._admin_flags("coordinator"),
                *self.tls_flags("coordinator"),
                *self.flags_of.get("coordinator", []),
            ],
        )
        wait_until(
            lambda: port_file.exists() and port_file.read_text().strip(),
            20,
            "the coordinator's port file",
        )
        self.coordinator = f"127.0.0.1:{int(port_file.read_text())}"

    def _start_daemon(self, name, role, label, more):
        self._spawn(
            name,
            [
                binary(label),
                "--coordinator",
                self.coordinator,
                "--name",
                name,
                "--listen",
                "127.0.0.1:0",
                *self._admin_flags(name),
                *self.tls_flags(role),
                *more,
                *self.flags_of.get(name, []),
            ],
        )

    def _checkpoint_flags(self):
        return ["--checkpoint-root", str(self.checkpoints)] if self.checkpoints else []

    def _admin_flags(self, name):
        path = self.directory / f"{name}.admin"
        path.unlink(missing_ok=True)
        return ["--admin-port-file", str(path)]

    def start_shard(self, name):
        self._start_daemon(name, "shard", "server/shard/starling-ps", self._checkpoint_flags())

    def start_worker(self, name, *more):
        self._start_daemon(name, "worker", self.worker_binary, [*self.worker_flags, *more])

    def kill(self, name, sig=signal.SIGKILL):
        """Sends `sig`; reaps the process if the signal kills at once."""
        self.processes[name].send_signal(sig)
        if sig == signal.SIGKILL:
            self.processes[name].wait()

    def restart_coordinator(self):
        """kill -9 and a restart with its state; returns when it answers."""
        self.kill("coordinator")
        self.start_coordinator()
        wait_until(lambda: self.cli("get", "jobs").returncode == 0, 30, "the coordinator to answer")

    def disturb(self, job, worker):
        """Early in the job, kill -9 of a worker, which stays away, and of the coordinator, which
        is restarted."""
        self.wait_progress(job, step=4)
        self.kill(worker)
        self.wait_progress(job, step=12)
        self.restart_coordinator()

    def replace_shard(self, job, shard):
        """kill -9 of a shard once each partition of the job has two copies; starts it again when
        the other one has taken over while the job runs."""
        self.wait_whole(job)
        self.kill(shard)

        def taken_over():
            status = self.describe(job)
            return status if int(status.get("failovers", 0)) > 0 else None

        status = wait_until(taken_over, 30, f"another shard to take over from {shard}")
        if status["state"] != "RUNNING":
            raise RuntimeError(f"job {job} is {status['state']}: {status['reason']}")
        self.start_shard(shard)

    def log(self, name):
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def wait_whole(self, job, timeout=60):
        """Waits until each partition has two whole copies; returns the job's status."""

        def whole():
            status = self.describe(job)
            return status.get("partitionsWhole", 0) == status.get("partitions", -1) and status

        return wait_until(whole, timeout, f"two copies of all partitions of {job}")

    def exit_status(self, name, timeout=15):
        return self.processes[name].wait(timeout)

    # ---- Admin ports ------------------------------------------------------------------------

    def admin_port(self, name):
        path = self.directory / f"{name}.admin"
        return int(
            wait_until(
                lambda: path.exists() and path.read_text().strip(), 30, f"the admin port of {name}"
            )
        )

    def ask(self, name, path, timeout=30):
        """GET from the daemon's admin port: (status, headers, text)."""
        request = f"http://127.0.0.1:{self.admin_port(name)}{path}"
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return reply.status, reply.headers, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    # ---- Client -----------------------------------------------------------------------------

    def as_client(self, command):
        """The command as a process that reaches the daemons."""
        return command

    def client_file(self, name):
        """A file that such a process shares with the test: its path here, and its path there."""
        path = self.directory / name
        return path, str(path)

    def cli(self, *args, timeout=120):
        """Runs the client; returns the CompletedProcess with text output."""
        return subprocess.run(
            self.as_client(
                [
                    binary("tools/cli/starling"),
                    *args,
                    "--coordinator",
                    self.coordinator,
                    *self.tls_flags("client"),
                ]
            ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def _json(self, *args):
        result = self.cli(*args, "-o", "json")
        if result.returncode != 0:
            raise RuntimeError(
                f"starling {' '.join(args)}: exit {result.returncode}: {result.stderr}"
            )
        return json.loads(result.stdout)

    def wait_registered(self, shards, workers, timeout=30):
        def ready():
            live = [d for d in self.get("shards") if d["state"] == "ready"]
            idle = [d for d in self.get("workers") if d["state"] != "lost"]
            return len(live) >= shards and len(idle) >= workers

        wait_until(ready, timeout, f"{shards} shards and {workers} workers to register")

    def get(self, what):
        """The list behind `starling get jobs|workers|shards -o json`."""
        return self._json("get", what)

    def describe(self, job):
        """The job's status (proto/coordinator.proto, JobStatus, in JSON's spelling)."""
        return self.describe_all(job)["status"]

    def describe_all(self, job):
        """The same with the job's views (JobReply)."""
        return self._json("describe", "job", job)

    def spans(self, address, after=0):
        """The recent spans of the daemon at `address` (proto/daemon.proto, SpansReply) without the
        first `after` that it recorded. Numbers are integers; `end_us` is added."""
        flags = ["--after", str(after)] if after else []
        files = self.tls_flags("client")[1::2]
        result = subprocess.run(
            self.as_client([binary("tests/e2e/spans"), *flags, address, *files]),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        reply = json.loads(result.stdout)
        for field in ("now_us", "dropped", "recorded"):
            reply[field] = int(reply[field])
        for span in reply["spans"]:
            for field in ("begin_us", "duration_us", "clock", "flow"):
                span[field] = int(span[field])
            span["end_us"] = span["begin_us"] + span["duration_us"]
        return reply

    def new_spans(self, cursors, away=lambda name: False):
        """What the shards have recorded since the last call with these `cursors`, a dict of the
        caller's: pairs of shard and span, and how many spans were overwritten before. A shard that
        is neither ready nor draining, is `away`, or dies meanwhile gives none."""
        found, dropped = [], 0
        for shard in self.get("shards"):
            name, address = shard["name"], shard["address"]
            if shard["state"] not in ("ready", "draining") or away(name):
                continue
            key = address, self.processes[name].pid
            try:
                reply = self.spans(address, cursors.get(key, 0))
            except (subprocess.SubprocessError, ValueError):
                continue  # it dies, or is another process by now
            cursors[key] = reply["recorded"]
            dropped += reply["dropped"]
            found += [(name, span) for span in reply["spans"]]
        return found, dropped

    def submit(self, job, *more):
        """Submits a dict in the job file's schema; raises with the client's message if refused."""
        path, seen = self.client_file(f"{job['metadata']['name']}.json")
        path.write_text(json.dumps(job))  # JSON is YAML
        result = self.cli("submit", "-f", seen, *more)
        if result.returncode != 0:
            raise RuntimeError(f"submit: exit {result.returncode}: {result.stderr}")
        return result

    def wait(self, job, timeout=300):
        """Exit status of `starling wait` (0 succeeded, 3 failed, 4 cancelled, 7 timeout)."""
        return self.cli("wait", job, "--timeout", f"{timeout}s", timeout=timeout + 30).returncode

    def wait_progress(self, job, epoch=0, step=1, timeout=120):
        """Waits until the job has started `epoch` and finished `step` steps in all; returns the
        status."""

        def there():
            status = self.describe(job)
            if status["state"] in ("FAILED", "CANCELLED"):
                raise RuntimeError(f"job {job} is {status['state']}: {status['reason']}")
            done = status["state"] == "SUCCEEDED"
            return status if done or (status["epoch"] >= epoch and status["step"] >= step) else None

        return wait_until(there, timeout, f"job {job} to reach epoch {epoch}, step {step}")

    def export(self, job):
        """The exported parameters: name -> (dtype, shape, bytes), in the file's order."""
        tensors, error = self._export(job)
        if tensors is None:
            raise RuntimeError(error)
        return tensors

    def try_export(self, job):
        """As export; None while there is nothing to export."""
        return self._export(job)[0]

    def _export(self, job):
        path, seen = self.client_file(f"{job}.safetensors")
        result = self.cli("export", job, "--format", "safetensors", "-o", seen)
        if result.returncode != 0:
            return None, f"export: exit {result.returncode}: {result.stderr}"
        return read_safetensors(path), ""


# ---- Results --------------------------------------------------------------------------------


def read_safetensors(path):
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], tuple(entry["shape"]), body[slice(*entry["data_offsets"])])
        for name, entry in sorted(header.items())
    }


def parameters_sha256(tensors):
    """One digest of names, types, shapes and bytes."""
    import hashlib

    digest = hashlib.sha256()
    for name, (dtype, shape, data) in sorted(tensors.items()):
        digest.update(f"{name} {dtype} {shape}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def floats(tensor):
    """A tensor of read_safetensors as a flat tuple of Python floats."""
    dtype, _, data = tensor
    assert dtype == "F32", dtype
    return struct.unpack(f"<{len(data) // 4}f", data)


def free_port():
    """A port with no listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def job_file(
    name,
    model,
    data,
    *,
    optimizer=None,
    batch=None,
    consistency=None,
    workers=None,
    evaluate=None,
    stop=None,
    seed=1,
    durability=None,
):
    """A job file as a dict, with short defaults."""
    spec = {
        "seed": seed,
        "model": model,
        "data": data,
        "batch": batch or {"global": 32, "microBatches": 4},
        "optimizer": optimizer or {"sgd": {"learningRate": 0.1}},
        "consistency": consistency or {"bsp": {}},
        "workers": workers or {"min": 1, "max": 1},
        "stop": stop or {"epochs": 1},
    }
    if evaluate:
        spec["evaluate"] = evaluate
    if durability:
        spec["durability"] = durability
    return {
        "apiVersion": "starling/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": spec,
    }
