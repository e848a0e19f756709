"""Checkpoints on real processes: taken, restored on another number of shards, and interrupted."""

import json
import os
import shutil
import tempfile
import time
import unittest
from pathlib import Path

from tests.e2e.bsp_matrix_test import ADAM, LAYERS, write_idx
from tests.e2e.cluster import (
    Cluster,
    floats,
    job_file,
    parameters_sha256,
    read_safetensors,
    wait_until,
)
from tests.e2e.promises import check, check_counted, check_same_bits

STEPS = 400
ENDLESS = {"steps": 100_000}  # until it is cancelled


def checkpoints(cluster, job=None):
    """What `starling checkpoint list` lists, newest first."""
    result = cluster.cli("checkpoint", "list", *([job] if job else []), "-o", "json")
    if result.returncode != 0:
        raise RuntimeError(f"checkpoint list: exit {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)


def create(cluster, job):
    """The id of a checkpoint that is taken now."""
    result = cluster.cli("checkpoint", "create", job)
    if result.returncode != 0:
        raise RuntimeError(f"checkpoint create: exit {result.returncode}: {result.stderr}")
    return result.stdout.strip()


def check_whole(cluster, checkpoint):
    root = ("--checkpoint-root", str(cluster.checkpoints))
    verified = cluster.cli("checkpoint", "verify", checkpoint, *root)
    check(verified.returncode == 0, f"checkpoint {checkpoint}: {verified.stderr}")


def go_on(cluster, checkpoint, name):
    result = cluster.cli("submit", "--from", checkpoint, "--name", name)
    if result.returncode != 0:
        raise RuntimeError(f"submit --from: exit {result.returncode}: {result.stderr}")
    return result.stderr


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="starling-checkpoints-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        images, labels = write_idx(cls.folder, samples=1000)  # 15 full batches and one of 40
        cls.data = {
            "train": {"idx": {"images": images, "labels": labels}},
            "test": {"idx": {"images": images, "labels": labels}},
        }

    def job(self, name, model=None, **more):
        spec = {
            "optimizer": ADAM,
            "batch": {"global": 64, "microBatches": 8},
            "workers": {"min": 1, "max": 2},
            "stop": {"steps": STEPS},
            **more,
        }
        checkpoint = spec.pop("checkpoint", None)
        job = job_file(name, model or {"layers": LAYERS}, self.data, **spec)
        if checkpoint:
            job["spec"]["checkpoint"] = checkpoint
        return job

    def end(self, cluster, name):
        self.assertEqual(cluster.wait(name, 240), 0, cluster.describe(name))
        return parameters_sha256(cluster.export(name))

    def undisturbed(self, job):
        with Cluster(shards=1, workers=1) as cluster:
            job["spec"].pop("checkpoint", None)
            cluster.submit(job)
            return self.end(cluster, job["metadata"]["name"])

    def test_goes_on_on_any_number_of_shards_to_the_same_bits(self):
        expected = self.undisturbed(self.job("alone", evaluate={"everyEpochs": 2}))
        root = self.folder / "root"
        root.mkdir()
        seen = {}
        # Slow enough to be asked for a checkpoint in the middle.
        paced = ["--inject-data-wait", "0.01s"]
        with Cluster(shards=3, workers=2, checkpoints=root, worker_flags=paced) as cluster:
            rule = {"everySteps": 10, "keep": 2}
            cluster.submit(self.job("first", checkpoint=rule, evaluate={"everyEpochs": 2}))
            cluster.wait_progress("first", step=30)
            taken = create(cluster, "first")
            seen["checkpoints taken"] = self.end(cluster, "first")
            listed = checkpoints(cluster, "first")
            self.assertIn(taken, [c["id"] for c in listed])
            self.assertEqual(sum(not c.get("askedFor") for c in listed), 2, listed)
            for checkpoint in listed:
                check_whole(cluster, checkpoint["id"])
            before = cluster.describe("first")
            step = next(int(c["step"]) for c in listed if c["id"] == taken)
        self.assertTrue(30 <= step < STEPS, step)
        self.assertEqual(
            len(list((root / taken).glob("shard-*.safetensors"))), 3, "one of each shard"
        )
        for shards, workers in ((1, 1), (2, 2), (5, 2)):
            with Cluster(shards=shards, workers=workers, checkpoints=root) as cluster:
                words = go_on(cluster, taken, "again")
                self.assertIn(f"goes on from checkpoint {taken}, step {step}", words)
                seen[f"{shards} shards"] = self.end(cluster, "again")
                status = cluster.describe("again")
                self.assertEqual(status["restoredFrom"], taken)
                self.assertTrue(status["reproducible"])
                self.assertEqual(
                    [(e["epoch"], e["step"]) for e in status["epochsDone"] if "epoch" in e],
                    [(e["epoch"], e["step"]) for e in before["epochsDone"] if "epoch" in e],
                )
                # Evaluations are of equal values, summed in another order.
                for mine, theirs in zip(status["epochsDone"], before["epochsDone"]):
                    self.assertAlmostEqual(
                        mine.get("testLoss", 0), theirs.get("testLoss", 0), places=6
                    )
        for what, digest in seen.items():
            print(f"{what}: {digest}", flush=True)
            check_same_bits({what: digest, "alone": expected})
        print(f"figure: {len(set(seen.values()))} SHA-256 over {len(seen)} runs")

    def test_an_exported_checkpoint_is_the_job_at_that_step(self):
        adam = {"adam": {"learningRate": 0.003}}  # whatever the last step is
        with Cluster(shards=2, workers=1, checkpoints=True) as cluster:
            cluster.submit(self.job("long", optimizer=adam, stop=ENDLESS))
            cluster.wait_progress("long", step=20)
            taken = create(cluster, "long")
            step = int(checkpoints(cluster)[0]["step"])
            path = cluster.directory / "taken.safetensors"
            written = cluster.cli(
                "checkpoint",
                "export",
                taken,
                "-o",
                str(path),
                "--checkpoint-root",
                str(cluster.checkpoints),
            )
            self.assertEqual(written.returncode, 0, written.stderr)
            short = self.job("short", optimizer=adam, stop={"steps": step})
            cluster.cli("cancel", "long")
            cluster.submit(short)
            exported = parameters_sha256(read_safetensors(path))
            check_same_bits({"exported": exported, "short": self.end(cluster, "short")})

    def test_counts_each_sample_once_without_steps_in_common(self):
        epochs, samples = 40, 2048
        for policy in ({"ssp": {"staleness": 2}}, {"async": {}}):
            root = self.folder / next(iter(policy))
            root.mkdir()
            job = job_file(
                "count",
                {"builtin": "counter"},
                {"train": {"counter": {"samples": samples}}},
                batch={"global": 32, "microBatches": 4},
                consistency=policy,
                optimizer={"sgd": {"learningRate": 1}},
                stop={"epochs": epochs},
                workers={"min": 2, "max": 2},
            )
            job["spec"]["checkpoint"] = {"everySteps": 100, "keep": 1}
            with Cluster(shards=2, workers=2, checkpoints=root) as cluster:
                cluster.submit(job)
                cluster.wait_progress("count", epoch=2)
                taken = create(cluster, "count")
                self.assertEqual(cluster.wait("count"), 0)
                check_counted(floats(cluster.export("count")["counter"]), epochs, samples)
            with Cluster(shards=3, workers=2, checkpoints=root) as cluster:
                go_on(cluster, taken, "again")
                self.assertEqual(cluster.wait("again"), 0)
                check_counted(floats(cluster.export("again")["counter"]), epochs, samples)

    def test_begins_another_job_with_its_values(self):
        with Cluster(shards=2, workers=1, checkpoints=True) as cluster:
            cluster.submit(self.job("old", stop=ENDLESS))
            cluster.wait_progress("old", step=20)
            taken = create(cluster, "old")
            cluster.cli("cancel", "old")
            tuned = self.job("tuned", optimizer={"sgd": {"learningRate": 0.0}}, stop={"steps": 5})
            cluster.submit(tuned, "--from", taken)
            self.assertEqual(cluster.wait("tuned"), 0)
            path = cluster.directory / "taken.safetensors"
            root = ("--checkpoint-root", str(cluster.checkpoints))
            cluster.cli("checkpoint", "export", taken, "-o", str(path), *root)
            old, new = read_safetensors(path), cluster.export("tuned")
            trained = [name for name in old if not name.startswith("bn1.")]
            self.assertTrue(trained, list(old))
            changed = [name for name in trained if old[name] != new[name]]
            check(not changed, f"a job without steps of its own has other bits: {changed}")
            other = self.job("other", model={"builtin": "mlp", "hidden": [8]})
            with self.assertRaises(RuntimeError) as refusal:
                cluster.submit(other, "--from", taken)
            for name in ("conv1.weight", "fc1.bias"):
                self.assertIn(name, str(refusal.exception))

    def test_a_death_while_it_is_written_costs_that_attempt_alone(self):
        # 4 million parameters, so that a checkpoint is under way long enough to be seen.
        model = {"builtin": "mlp", "hidden": [2048, 2048]}
        more = {"stop": {"steps": 60}, "durability": "replicated"}
        alone = self.job("alone", model=model, stop={"steps": 60})
        expected = self.undisturbed(alone)
        with Cluster(shards=3, workers=2, checkpoints=True) as cluster:
            rule = {"everySteps": 4, "keep": 50}
            cluster.submit(self.job("killed", model=model, checkpoint=rule, **more))

            cluster.wait_whole("killed")
            for victim in ("shard-1", "coordinator"):
                wait_until(lambda: checkpoints(cluster), 120, "a checkpoint")
                earlier = checkpoints(cluster)[0]["id"]
                self.wait_for_a_file(cluster)
                cluster.kill(victim)
                if victim == "coordinator":
                    cluster.start_coordinator()
                    wait_until(
                        lambda: cluster.cli("get", "jobs").returncode == 0,
                        30,
                        "the coordinator to answer",
                    )
                else:
                    cluster.start_shard(victim)
                self.assertIn(
                    cluster.describe("killed")["state"], ("RUNNING", "SUCCEEDED"), victim
                )
                listed = wait_until(
                    lambda: self.listed(cluster), 30, "the list after the death of " + victim
                )
                check(earlier in listed, f"checkpoint {earlier} is lost: {listed}")
                check_whole(cluster, earlier)
                wait_until(
                    lambda: self.listed(cluster)[:1] not in ([], [earlier])
                    or cluster.describe("killed")["state"] == "SUCCEEDED",
                    120,
                    "a later checkpoint, or the job's end",
                )
            check_same_bits({"killed": self.end(cluster, "killed"), "alone": expected})
            for checkpoint in checkpoints(cluster):
                check_whole(cluster, checkpoint["id"])
            left = wait_until(
                lambda: not list(cluster.checkpoints.glob("*.partial"))
                and not list(cluster.checkpoints.glob("*.deleted"))
                and sorted(os.listdir(cluster.checkpoints)),
                30,
                "what was not finished to be removed",
            )
            self.assertEqual(left, sorted([".starling", *self.listed(cluster)]))

    def listed(self, cluster):
        result = cluster.cli("checkpoint", "list", "killed", "-o", "json")
        return [c["id"] for c in json.loads(result.stdout)] if result.returncode == 0 else []

    def wait_for_a_file(self, cluster):
        """Until a shard writes its part of a checkpoint."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for folder in cluster.checkpoints.glob("*.partial"):
                if any(folder.glob("shard-*")):
                    return
            time.sleep(0.001)
        self.fail("no shard wrote a part of a checkpoint")

    def test_a_shard_that_does_not_see_the_folder_is_named(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        flags = {"shard-1": ["--checkpoint-root", str(elsewhere)]}
        root = self.folder / "seen"
        root.mkdir()
        flags["shard-0"] = flags["coordinator"] = ["--checkpoint-root", str(root)]
        with Cluster(shards=2, workers=1, flags_of=flags) as cluster:
            job = self.job("blind", checkpoint={"everySteps": 10})

            def refusal():
                result = cluster.cli("submit", "-f", str(path), "--dry-run")
                return result if result.returncode != 0 else None

            path = cluster.directory / "blind.json"
            path.write_text(json.dumps(job))
            result = wait_until(refusal, 20, "the submission to be refused")
            self.assertIn("shard shard-1 does not see the coordinator's checkpoint", result.stderr)
            self.assertNotIn("shard-0", result.stderr)
            cluster.submit(self.job("blind"))
            cluster.wait_progress("blind", step=1)
            result = cluster.cli("checkpoint", "create", "blind")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("shard shard-1 does not see", result.stderr)
            self.assertEqual(cluster.wait("blind"), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
