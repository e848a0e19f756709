"""`starling predict` prints what NumPy computes from the exported file, and the same accuracy.

Default: examples/digits_mlp.yaml on made-up digits, and a CNN with batch norm and dropout on
made-up images. --full DIGITS.csv.gz: the former on the UCI handwritten digits. NumPy.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import ROOT, Cluster, job_file
from tests.e2e.export_accuracy_test import LAYERS

sys.path.insert(0, str(ROOT / "tests/judge"))
import datasets  # noqa: E402
import network  # noqa: E402
import proto_json  # noqa: E402
import safetensors_file  # noqa: E402

DIGITS = None


def write_digits(path, rows=1000):
    """Rows of 64 numbers of 0..16 with a bright spot that depends on the label, and the label."""
    source = random.Random(5)
    with open(path, "w", encoding="ascii") as file:
        for _ in range(rows):
            label = source.randrange(10)
            pixels = [source.randrange(10) for _ in range(64)]
            pixels[label * 5] = 16
            file.write(",".join(map(str, [*pixels, label])) + "\n")


class Predict(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def predict(self, cluster, model, x, *more):
        """The array that `starling predict` writes; the CompletedProcess if it fails."""
        np.save(self.folder / "x.npy", x)
        result = cluster.cli(
            "predict",
            str(model),
            "--input",
            str(self.folder / "x.npy"),
            "-o",
            str(self.folder / "y.npy"),
            *more,
        )
        return np.load(self.folder / "y.npy") if result.returncode == 0 else result

    def trained(self, cluster, job):
        """(the printed accuracy, the exported file)."""
        result = cluster.cli("wait", job, "--timeout", "300s", timeout=330)
        self.assertEqual(result.returncode, 0, result.stderr)
        cluster.export(job)
        printed = re.search(r"^test_accuracy=(\S+)$", result.stdout, re.M).group(1)
        return printed, cluster.directory / f"{job}.safetensors"

    def by_numpy(self, export, x):
        """Logits for samples that are already normalised."""
        metadata, parameters = safetensors_file.read(export)
        return network.Network(proto_json.loads(metadata["model"])).logits(parameters, x)

    def judge(self, y, expected, labels, printed):
        self.assertEqual((y.dtype, y.shape), (np.float32, expected.shape))
        worst = np.abs(y - expected).max() / np.abs(expected).max()
        self.assertLess(worst, 1e-5)
        accuracy = f"{(y.argmax(1) == labels).mean():.4f}"
        self.assertEqual(accuracy, printed)
        print(
            f"figure: outputs within {worst:.1e} of NumPy's, accuracy {accuracy}, "
            f"printed {printed}",
            flush=True,
        )

    def test_digits(self):
        path = DIGITS or str(self.folder / "digits.csv")
        if not DIGITS:
            write_digits(path)
        os.environ["STARLING_DIGITS"] = path
        with Cluster(shards=2, workers=2) as cluster:
            result = cluster.cli(
                "submit",
                "-f",
                str(ROOT / "examples/digits_mlp.yaml"),
                "--set",
                f"stop.epochs={30 if DIGITS else 3}",
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            printed, export = self.trained(cluster, "digits-mlp")
            test = proto_json.loads(safetensors_file.read(export)[0]["preprocessing"])
            raw, labels = datasets.load(test["test"], {}, [64], [path])
            normalised, _ = datasets.load(test["test"], test["normalize"], [64], [path])

            y = self.predict(cluster, export, raw)
            self.judge(y, self.by_numpy(export, normalised), labels, printed)
            for same in (
                self.predict(cluster, "digits-mlp", raw),
                self.predict(cluster, export, raw.astype(np.uint8)),
                self.predict(cluster, export, raw.astype(np.int64)),
            ):
                np.testing.assert_array_equal(same, y)
            np.testing.assert_array_equal(
                self.predict(cluster, export, raw, "--as", "classes"), y.argmax(1)
            )
            exp = np.exp(y.astype(float) - y.max(1, keepdims=True))
            np.testing.assert_allclose(
                self.predict(cluster, export, raw, "--as", "probabilities"),
                exp / exp.sum(1, keepdims=True),
                rtol=1e-5,
            )
            self.assertEqual(self.predict(cluster, export, raw[:0]).shape, (0, 10))
            self.without_the_model(cluster, export, raw, y)
            self.refused(cluster, export, raw)

    def without_the_model(self, cluster, export, raw, y):
        bare = self.folder / "bare.safetensors"
        _, tensors = safetensors_file.read(export)
        safetensors_file.write(
            bare, {}, {name: array.astype(np.float32) for name, array in tensors.items()}
        )
        result = self.predict(cluster, bare, raw)
        self.assertEqual(result.returncode, 2)
        self.assertIn("-f job.yaml", result.stderr)
        np.testing.assert_array_equal(
            self.predict(cluster, bare, raw, "-f", str(ROOT / "examples/digits_mlp.yaml")), y
        )
        result = self.predict(
            cluster, bare, raw[:, :63], "-f", str(ROOT / "examples/digits_mlp.yaml")
        )
        self.assertEqual(result.returncode, 2)
        self.assertIn("expected F32 [128, 63], got F32 [128, 64]", result.stderr)

    def refused(self, cluster, export, raw):
        for array, words in (
            (raw[:, :63], "expected an array of shape [n, 64] for n samples, got [360, 63]"),
            (raw[0], "expected an array of shape [n, 64]"),
            (raw.astype(np.float16), "<f2"),
        ):
            result = self.predict(cluster, export, array)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words.replace("360", str(len(raw))), result.stderr)
        holes = raw.astype(np.float32)
        holes[3, 5] = np.nan
        result = self.predict(cluster, export, holes, "--as", "classes")
        self.assertEqual(result.returncode, 2)
        self.assertIn(f"the outputs of 1 of {len(raw)} samples are not finite", result.stderr)
        y = self.predict(cluster, export, holes, "--as", "outputs")
        self.assertEqual(np.isfinite(y).all(axis=1).sum(), len(raw) - 1)
        result = self.predict(cluster, "no-such-job", raw)
        self.assertEqual(result.returncode, 5)
        result = self.predict(cluster, self.folder / "none.safetensors", raw)
        self.assertEqual(result.returncode, 5)
        missing = str(self.folder / "none.npy")
        result = cluster.cli(
            "predict", str(export), "--input", missing, "-o", str(self.folder / "y.npy")
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn(missing, result.stderr)
        result = cluster.cli("generate", str(export), "--tokens", "1,2")
        self.assertEqual(result.returncode, 2)
        self.assertIn("got one from numbers [64] to [10]", result.stderr)

    def test_images(self):
        with Cluster(shards=2, workers=2) as cluster:
            images, labels = write_idx(self.folder, samples=997)
            source = {"idx": {"images": images, "labels": labels}}
            cluster.submit(
                job_file(
                    "images",
                    {"layers": LAYERS},
                    {"train": source, "test": source, "normalize": {"mean": [0.13], "std": [0.3]}},
                    optimizer={"adam": {"learningRate": 0.001}},
                    batch={"global": 64, "microBatches": 4},
                    workers={"min": 2, "max": 2},
                    evaluate={"everyEpochs": 2},
                    stop={"epochs": 2},
                )
            )
            printed, export = self.trained(cluster, "images")
            test = proto_json.loads(safetensors_file.read(export)[0]["preprocessing"])
            normalised, classes = datasets.load(
                test["test"], test["normalize"], [1, 8, 8], [images, labels]
            )
            pixels = datasets.read_idx(images)
            y = self.predict(cluster, export, pixels)
            self.judge(y, self.by_numpy(export, normalised), classes, printed)
            scaled = self.predict(cluster, "images", (pixels / 255).astype(np.float32)[:, None])
            np.testing.assert_allclose(scaled, y, atol=1e-5)
            result = self.predict(cluster, export, pixels[:, :, :7])
            self.assertIn(
                "expected an array of shape [n, 1, 8, 8] for n samples, got [997, 8, 7]",
                result.stderr,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--full", metavar="DIGITS", type=lambda path: str(Path(path).resolve(strict=True))
    )
    known, rest = parser.parse_known_args()
    DIGITS = known.full
    unittest.main(argv=[sys.argv[0], *rest])
