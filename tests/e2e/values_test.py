"""A few jobs of the walk in values.py; and one by one what `export`, `predict` and `generate` read
after a change of policy, and of jobs that failed or run.
"""

import copy
import hashlib
import re
import struct
import tempfile
import unittest
from pathlib import Path

from tests.e2e import values
from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, parameters_sha256, read_safetensors, wait_until
from tests.e2e.promises import check, check_same_bits

SIZE = 8  # of an image
SPOILT = 20  # the step of a job that fails there, from 1
TEXT = "the quick brown fox. "


class Values(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_a_short_walk(self):
        counts = values.walk(jobs=8, seed=3)
        print(f"figure: {counts}")

    def export(self, cluster, name):
        """(the file, what the client says of it)."""
        path = self.folder / f"{name}.safetensors"
        result = cluster.cli("export", name, "--format", "safetensors", "-o", str(path))
        self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}")
        return path, result.stderr

    def digest(self, path):
        return parameters_sha256(read_safetensors(path))

    def end_after_a_change(self, cluster, job, change, end):
        """Submits it, changes its policy while it trains, and cancels it or lets it succeed."""
        name = job["metadata"]["name"]
        cluster.submit(job)
        cluster.wait_progress(name, step=3)
        set_policy = cluster.cli("set", name, f"consistency={change}")
        self.assertIn(set_policy.returncode, (0, 1), set_policy.stderr)
        if end == "cancel":
            wait_until(
                lambda: cluster.describe(name)["policies"][-1].get("inForce"), 60, "the change"
            )
            self.assertEqual(cluster.cli("cancel", name).returncode, 0)
        cluster.wait(name)

    def test_after_every_change_of_policy_and_every_end(self):
        data = {"train": {"counter": {"samples": 300_000}}}
        with Cluster(shards=2, workers=1) as cluster:
            for begin, change in (
                ("bsp", "ssp:1"),
                ("bsp", "async"),
                ("ssp:1", "bsp"),
                ("async", "bsp"),
            ):
                for end in ("cancel", "succeed"):
                    name = f"{begin}-{change}-{end}".replace(":", "")
                    job = job_file(
                        name,
                        {"builtin": "counter"},
                        data,
                        consistency=values.POLICIES[begin],
                        batch={"global": 3000, "microBatches": 4},
                        optimizer={"sgd": {"learningRate": 1}},
                        stop={"epochs": 2 if end == "succeed" else 100_000},
                    )
                    self.end_after_a_change(cluster, job, change, end)
                    files = {}
                    for look in ("first", "second"):
                        path, _ = self.export(cluster, name)
                        files[look] = hashlib.sha256(path.read_bytes()).hexdigest()
                    check_same_bits(files)

    # ---- predict and generate -----------------------------------------------------------------

    def image_job(self, name, **more):
        images, labels = write_idx(self.folder, samples=640, size=SIZE)
        source = {"idx": {"images": images, "labels": labels}}
        data = {"train": source, "test": source} if "evaluate" in more else {"train": source}
        spec = {
            "batch": {"global": 64, "microBatches": 4},
            "stop": {"epochs": 100_000},
            **more,
        }
        return job_file(name, {"builtin": "mlp", "hidden": [16]}, copy.deepcopy(data), **spec)

    def predicted(self, cluster, model):
        """What `predict` writes for four images."""
        path = self.folder / "x.npy"
        shape = (4, SIZE, SIZE)
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        text += " " * (-(len(text) + 11) % 64) + "\n"
        count = shape[0] * SIZE * SIZE
        pixels = struct.pack(f"<{count}f", *(i / count for i in range(count)))
        size = struct.pack("<H", len(text))
        path.write_bytes(b"\x93NUMPY\x01\x00" + size + text.encode() + pixels)
        out = self.folder / "y.npy"
        result = cluster.cli("predict", str(model), "--input", str(path), "-o", str(out))
        self.assertEqual(result.returncode, 0, f"{model}: {result.stderr}")
        return out.read_bytes()

    def check_predicts(self, cluster, name, path):
        same = self.predicted(cluster, name) == self.predicted(cluster, path)
        check(same, f"{name}: predict computes something else of the job than of its export")

    def test_predict_after_a_change_of_policy(self):
        with Cluster(shards=2, workers=1) as cluster:
            for begin, change in (("bsp", "async"), ("ssp:1", "bsp")):
                for end in ("cancel", "succeed"):
                    name = f"{begin}-{change}-{end}".replace(":", "")
                    job = self.image_job(
                        name,
                        consistency=values.POLICIES[begin],
                        stop={"epochs": 30 if end == "succeed" else 100_000},
                    )
                    self.end_after_a_change(cluster, job, change, end)
                    self.check_predicts(cluster, name, self.export(cluster, name)[0])

    def test_generate_after_a_change_of_policy(self):
        text = self.folder / "text"
        text.write_text(TEXT * 100, encoding="ascii")
        source = {"text": {"path": str(text), "context": 16, "stride": 5}}
        with Cluster(shards=2, workers=1) as cluster:
            for begin, change in (("bsp", "ssp:1"), ("async", "bsp")):
                for end in ("cancel", "succeed"):
                    name = f"{begin}-{change}-{end}".replace(":", "")
                    job = job_file(
                        name,
                        {"builtin": "gpt2", "depth": 1, "width": 16, "heads": 2},
                        {"train": copy.deepcopy(source)},
                        consistency=values.POLICIES[begin],
                        batch={"global": 32, "microBatches": 4},
                        optimizer={"adamw": {"learningRate": 0.01}},
                        stop={"epochs": 5 if end == "succeed" else 100_000},
                    )
                    self.end_after_a_change(cluster, job, change, end)
                    said = {}
                    for model in (name, self.export(cluster, name)[0]):
                        flags = ("--prompt", TEXT[:9], "--max-new", "20", "--temperature", "0")
                        result = cluster.cli("generate", str(model), *flags)
                        self.assertEqual(result.returncode, 0, f"{model}: {result.stderr}")
                        said[str(model)] = result.stdout
                    check(len(set(said.values())) == 1, f"other text than of the export: {said}")

    # ---- Jobs that failed or run --------------------------------------------------------------

    def test_of_a_job_that_failed(self):
        """Its values are those before the step that failed: in BSP those of a job that ends there,
        to the bit. The only worker spoils that step each time."""
        flags = ["--inject-non-finite", str(SPOILT)]
        with Cluster(shards=2, workers=1, worker_flags=flags) as cluster:
            for policy in ("bsp", "ssp:1", "async"):
                name = f"fails-{policy}".replace(":", "")
                cluster.submit(self.image_job(name, consistency=values.POLICIES[policy]))
                self.assertEqual(cluster.wait(name), 3)
                path, _ = self.export(cluster, name)
                self.check_predicts(cluster, name, path)
                if policy != "bsp":
                    continue
                self.assertEqual(int(values.metadata(path)["step"]), SPOILT - 1)
                stop = {"epochs": 100_000, "steps": SPOILT - 1}
                cluster.submit(self.image_job("ends", stop=stop))
                self.assertEqual(cluster.wait("ends"), 0, cluster.describe("ends"))
                ends, _ = self.export(cluster, "ends")
                check_same_bits({name: self.digest(path), "ends": self.digest(ends)})

    def test_of_a_job_that_runs(self):
        """The values of the newest epoch that was evaluated: those of a job that ends with it."""
        slow = ["--lanes", "1", "--inject-data-wait", "0.05s"]
        with Cluster(shards=2, workers=1, worker_flags=slow) as cluster:
            job = self.image_job("runs", evaluate={"everyEpochs": 1})
            cluster.submit(job)
            wait_until(lambda: cluster.try_export("runs"), 120, "an epoch to be evaluated")
            for _ in range(20):
                path, words = self.export(cluster, "runs")
                before = path.read_bytes()
                mine, of_file = self.predicted(cluster, "runs"), self.predicted(cluster, path)
                again, _ = self.export(cluster, "runs")
                if again.read_bytes() == before:
                    break
            else:
                self.fail("each epoch ended before it could be looked at")
            check(mine == of_file, "predict computes something else than of the export")
            self.assertEqual(cluster.describe("runs")["state"], "RUNNING")
            self.assertEqual(cluster.cli("cancel", "runs").returncode, 0)
            epochs = int(re.search(r"as they were after epoch (\d+)", words)[1])
            cluster.submit(self.image_job("ends", stop={"epochs": epochs}))
            self.assertEqual(cluster.wait("ends"), 0, cluster.describe("ends"))
            ends, _ = self.export(cluster, "ends")
            check_same_bits({"runs": self.digest(path), f"{epochs} epochs": self.digest(ends)})

    def test_an_export_that_cannot_be_written_names_the_error(self):
        """The file's limit is reached while values are read, as a full disk would be."""
        with Cluster(shards=2, workers=1) as cluster:
            data = {"train": {"counter": {"samples": 600_000}}}
            more = {"batch": {"global": 60_000, "microBatches": 4}}
            cluster.submit(job_file("large", {"builtin": "counter"}, data, **more))
            self.assertEqual(cluster.wait("large"), 0)
            limited = ["bash", "-c", 'trap "" XFSZ; ulimit -f 1100; exec "$0" "$@"']
            cluster.as_client = lambda command: [*limited, *command]
            path = self.folder / "large.safetensors"
            result = cluster.cli("export", "large", "--format", "safetensors", "-o", str(path))
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("File too large", result.stderr)
            self.assertNotIn("CANCELLED", result.stderr)
            self.assertEqual(list(self.folder.glob("large*")), [])


if __name__ == "__main__":
    unittest.main()
