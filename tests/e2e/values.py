"""Unless a shard is lost, a job's values stay readable and are those that were trained.

    values.py [--jobs N] [--seed S]

A random walk: small jobs over all policies, one after the other, on real processes, while policies
are set, jobs cancelled, workers drained and killed, and the coordinator killed. Each job's values
are exported twice, to the same bytes, and judged:

* counter: row i is the number of times that sample i counted. A job that succeeded has each sample
  once per epoch. A cancelled one has complete epochs and at most one sample more; if it ended in
  BSP, exactly the samples of the steps that the file names.
* BSP: the bits of an undisturbed job that stops at the step that the file names.

At the end the coordinator is killed once more, and all files are exported again, to the same bytes.
Then a shard is killed: now each answer names it, and says that the values are gone.
"""

import argparse
import hashlib
import json
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, floats, job_file, read_safetensors, wait_until
from tests.e2e.promises import PromiseBroken

SHARDS, WORKERS = 2, 2
POLICIES = {
    "bsp": {"bsp": {}},
    "ssp:1": {"ssp": {"staleness": 1}},
    "ssp:3": {"ssp": {"staleness": 3}},
    "async": {"async": {}},
}
SAMPLES, BATCH = 300_000, 6_000  # of the counter: two slices, 50 steps per epoch
IMAGES, IMAGE_BATCH = 1600, 32  # 50 steps per epoch


class Wrong(Exception):
    """Values are missing, or a job did not end as it should."""


def metadata(path):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + size])["__metadata__"]


class Walk:
    """Jobs on a cluster, from a seed. `folder` holds data, outputs and exports."""

    def __init__(self, cluster, folder, seed):
        self.cluster = cluster
        self.folder = Path(folder)
        self.random = random.Random(seed)
        images, labels = write_idx(str(folder), samples=IMAGES)
        self.images = {"train": {"idx": {"images": images, "labels": labels}}}
        self.files = {}  # job -> sha256 of its file
        self.references = {}  # steps -> sha256 of the parameters of an undisturbed BSP job
        self.counts = {}  # event -> count

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- Files ------------------------------------------------------------------------------

    def export(self, job):
        """Exports the file; raises with the client's message."""
        path = self.folder / f"{job}.safetensors"
        path.unlink(missing_ok=True)
        result = self.cluster.cli("export", job, "--format", "safetensors", "-o", str(path))
        if result.returncode != 0:
            raise Wrong(f"{job}: export: exit {result.returncode}: {result.stderr}")
        return path

    def digest(self, job):
        path = self.export(job)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return digest, path

    def output(self, job):
        """The file of spec.output, once it exists."""

        def done():
            output = self.cluster.describe(job).get("output", {})
            if output.get("state") == "FAILED":
                raise Wrong(f"{job}: output: {output['error']}")
            return output if output.get("state") == "WRITTEN" else None

        return Path(wait_until(done, 60, f"{job}'s output")["path"])

    # ---- Jobs -------------------------------------------------------------------------------

    def job(self, name, policy, counter, epochs):
        if counter:
            job = job_file(
                name,
                {"builtin": "counter"},
                {"train": {"counter": {"samples": SAMPLES}}},
                batch={"global": BATCH, "microBatches": 4},
                consistency=POLICIES[policy],
                optimizer={"sgd": {"learningRate": 1}},
                stop={"epochs": epochs},
                workers={"min": 1, "max": WORKERS},
                durability="none",  # the shard that dies has the only copy
            )
        else:
            job = job_file(
                name,
                {"builtin": "mlp", "hidden": [32, 32]},
                self.images,
                batch={"global": IMAGE_BATCH, "microBatches": 4},
                consistency=POLICIES[policy],
                stop={"epochs": epochs},
                workers={"min": 1, "max": WORKERS},
                durability="none",  # the shard that dies has the only copy
            )
        return job

    def reference(self, steps):
        """The digest after this many steps of undisturbed training in BSP."""
        if steps not in self.references:
            job = self.job("reference", "bsp", counter=False, epochs=100)
            job["spec"]["stop"]["steps"] = steps
            self.cluster.submit(job)
            if self.cluster.wait("reference", 120) != 0:
                raise Wrong("the reference did not succeed")
            self.references[steps] = read_safetensors(self.export("reference"))
            self.cluster.cli("delete", "reference")
        return self.references[steps]

    def judge_counter(self, job, status, path):
        rows = floats(read_safetensors(path)["counter"])
        epochs = int(status["epoch"])
        least, greatest = min(rows), max(rows)
        if status["state"] == "SUCCEEDED":
            if not least == greatest == int(status["epochs"]):
                raise PromiseBroken(
                    f"{job}: rows from {least} to {greatest} after {status['epochs']} epochs"
                )
        elif least < epochs or greatest > epochs + 1:
            raise PromiseBroken(f"{job}: rows from {least} to {greatest} in epoch {epochs}")
        if status["policy"] == "bsp":
            steps = int(metadata(path)["step"])
            if sum(rows) != steps * BATCH:
                raise PromiseBroken(
                    f"{job}: {sum(rows)} samples counted at version {steps} of {BATCH} each"
                )

    def judge_bits(self, job, status, path):
        steps = int(metadata(path)["step"])
        if (
            status["state"] == "SUCCEEDED"
            and steps != int(status["epochs"]) * IMAGES // IMAGE_BATCH
        ):
            raise PromiseBroken(
                f"{job}: the values of step {steps} after {status['epochs']} epochs"
            )
        if steps == 0:
            return self.count("ended before a step")
        if read_safetensors(path) != self.reference(steps):
            raise PromiseBroken(f"{job}: other bits at step {steps} than an undisturbed job's")
        return self.count("bitwise")

    # ---- Events -------------------------------------------------------------------------------

    def disturb(self, job, may_set):
        """One event in the life of a job."""
        weights = {
            "set": 40 if may_set else 0,
            "cancel": 12,
            "drain": 6,
            "kill worker": 6,
            "kill coordinator": 8,
            "wait": 28,
        }
        kind = self.random.choices(list(weights), weights=list(weights.values()))[0]
        self.count(kind)
        if kind == "set":
            result = self.cluster.cli(
                "set", job, f"consistency={self.random.choice(list(POLICIES))}"
            )
            if result.returncode != 0 and "is over" not in result.stderr:
                raise Wrong(f"{job}: set: {result.stderr}")
        elif kind == "cancel":
            self.cluster.cli("cancel", job)  # it may have ended already
        elif kind in ("drain", "kill worker"):
            name = f"worker-{self.random.randrange(WORKERS)}"
            self.cluster.kill(name, signal.SIGTERM if kind == "drain" else signal.SIGKILL)
            self.cluster.exit_status(name, 60)
            self.cluster.start_worker(name)
        elif kind == "kill coordinator":
            self.cluster.restart_coordinator()
        else:
            time.sleep(self.random.random())

    def run_one(self, number):
        job = f"walk-{number}"
        bits = self.random.random() < 0.3
        policy = "bsp" if bits else self.random.choice(list(POLICIES))
        spec = self.job(job, policy, counter=not bits, epochs=self.random.randint(1, 4))
        has_output = self.random.random() < 0.3
        if has_output:
            spec["spec"]["output"] = f"walk/{job}.safetensors"
        # Right after a coordinator's restart no worker has reported yet.
        wait_until(lambda: self.try_submit(spec), 60, f"{job} to be accepted")
        for _ in range(self.random.randrange(5)):
            self.disturb(job, may_set=not bits)
        self.cluster.wait(job, 300)
        reply = json.loads(self.cluster.cli("describe", "job", job, "-o", "json").stdout)
        status = reply["status"]
        self.count(status["state"])
        if status["state"] not in ("SUCCEEDED", "CANCELLED"):
            raise Wrong(f"{job} is {status['state']}: {status['reason']}")
        if not reply["views"]:
            return self.count("cancelled before it ran")
        first, path = self.digest(job)
        if bits:
            self.judge_bits(job, status, path)
        else:
            self.judge_counter(job, status, path)
        if self.digest(job)[0] != first:
            raise PromiseBroken(f"{job}: two exports differ")
        if has_output and status["state"] == "SUCCEEDED":
            if hashlib.sha256(self.output(job).read_bytes()).hexdigest() != first:
                raise PromiseBroken(f"{job}: spec.output and export differ")
            self.count("output")
        self.files[job] = first
        path.unlink(missing_ok=True)
        return None

    def try_submit(self, spec):
        try:
            self.cluster.submit(spec)
            return True
        except RuntimeError as error:
            if "no worker" in str(error) or "reach" in str(error) or "shutting down" in str(error):
                return False
            raise

    # ---- The end ------------------------------------------------------------------------------

    def export_all_again(self):
        self.cluster.restart_coordinator()
        for job, digest in self.files.items():
            if self.digest(job)[0] != digest:
                raise PromiseBroken(f"{job}: other bytes after a coordinator's restart")

    def lose_a_shard(self):
        """Every job has a part there, or is on the other shard only and still readable."""
        self.cluster.kill("shard-1")
        wait_until(
            lambda: any(
                s["name"] == "shard-1" and s["state"] == "lost" for s in self.cluster.get("shards")
            ),
            60,
            "shard-1 to be lost",
        )
        gone = 0
        for restart in (False, True):
            if restart:
                self.cluster.restart_coordinator()
            for job, digest in list(self.files.items())[-20:]:
                try:
                    if self.digest(job)[0] != digest:
                        raise PromiseBroken(f"{job}: other bytes")
                except Wrong as wrong:
                    if "are gone: " not in str(wrong) or "lost with shard shard-1 at " not in str(
                        wrong
                    ):
                        raise
                    gone += 1
        if gone == 0:
            raise Wrong("no job had values on the lost shard")


def walk(jobs, seed):
    """Raises Wrong; otherwise returns the counts of events."""
    folder = tempfile.mkdtemp(prefix="starling-values-")
    outputs = Path(folder) / "outputs"
    outputs.mkdir()
    try:
        with Cluster(
            shards=SHARDS,
            workers=WORKERS,
            flags_of={"coordinator": ["--output-root", str(outputs)]},
        ) as cluster:
            steps = Walk(cluster, folder, seed)
            for number in range(jobs):
                steps.run_one(number)
                if number % 10 == 9:
                    print(f"{number + 1} jobs: {steps.counts}", flush=True)
            steps.export_all_again()
            steps.lose_a_shard()
            return steps.counts
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        counts = walk(options.jobs, options.seed)
    except (Wrong, PromiseBroken) as wrong:
        print(f"figure: {wrong}")
        return 1
    happened = ", ".join(f"{counts[what]} {what}" for what in sorted(counts))
    print(
        f"figure: {options.jobs} jobs, all values had, exact and the same bytes twice ({happened})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
