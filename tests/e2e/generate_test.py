"""`starling generate` continues what a model has learned: texts and tokens that repeat.

A tiny GPT learns a cycle, so the continuation of any piece of it is known. NumPy.
"""

import struct
import tempfile
import unittest
from pathlib import Path

import numpy as np

from tests.e2e.cluster import Cluster, job_file

CYCLE = "the quick brown fox. "
MODEL = {"builtin": "gpt2", "depth": 1, "width": 32, "heads": 2}
CONTEXT = 32


class Generate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def train(self, cluster, name, source):
        # The stride is coprime to the cycle's length, so that every phase of it occurs.
        for kind in source.values():
            kind |= {"context": CONTEXT, "stride": 5}
        cluster.submit(
            job_file(
                name,
                MODEL,
                {"train": source},
                batch={"global": 32, "microBatches": 4},
                optimizer={"adamw": {"learningRate": 0.01}},
                workers={"min": 1, "max": 2},
                stop={"steps": 120, "epochs": 1000},
            )
        )
        self.assertEqual(cluster.wait(name, 240), 0, cluster.describe(name))
        cluster.export(name)
        return cluster.directory / f"{name}.safetensors"

    def generate(self, cluster, model, *arguments):
        result = cluster.cli("generate", str(model), *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def refused(self, cluster, model, words, *arguments):
        result = cluster.cli("generate", str(model), *arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(words, result.stderr)

    def test_bytes(self):
        path = self.folder / "text"
        path.write_text(CYCLE * 100, encoding="ascii")
        with Cluster(shards=2, workers=2) as cluster:
            export = self.train(cluster, "text", {"text": {"path": str(path)}})
            text = CYCLE * 6
            # Shorter and longer than the context, and far beyond it, so that the window slides.
            for begin, prompt_bytes in ((0, 12), (4, 60)):
                prompt = text[begin : begin + prompt_bytes]
                written = self.generate(
                    cluster, "text", "--prompt", prompt, "--max-new", "50", "--temperature", "0"
                )
                self.assertEqual(written, text[begin : begin + prompt_bytes + 50] + "\n")
                self.assertEqual(
                    written,
                    self.generate(
                        cluster, export, "--prompt", prompt, "--max-new", "50", "--temperature", "0"
                    ),
                )
            drawn = {
                seed: self.generate(
                    cluster, export, "--prompt", "the", "--temperature", "50", "--seed", seed
                )
                for seed in ("1", "2")
            }
            self.assertNotEqual(drawn["1"], drawn["2"])
            self.assertEqual(
                drawn["1"],
                self.generate(
                    cluster, export, "--prompt", "the", "--temperature", "50", "--seed", "1"
                ),
            )
            self.assertEqual(
                self.generate(
                    cluster,
                    export,
                    "--prompt",
                    text[:12],
                    "--temperature",
                    "50",
                    "--top-k",
                    "1",
                    "--max-new",
                    "9",
                ),
                text[:21] + "\n",
            )
            self.refused(cluster, export, "--prompt and --tokens")
            self.refused(cluster, export, "--prompt and --tokens", "--prompt", "a", "--tokens", "1")
            self.refused(
                cluster, export, "expected tokens in [0, 256), got 256", "--tokens", "1,256"
            )
            self.refused(cluster, export, "expected whole numbers", "--tokens", "1,x")
            self.agrees_with_predict(cluster, export, text)

    def agrees_with_predict(self, cluster, export, text):
        """The likeliest next byte matches predict's logits at the last position."""
        window = np.frombuffer(text[:CONTEXT].encode(), np.uint8)[None]
        np.save(self.folder / "x.npy", window)
        result = cluster.cli(
            "predict",
            str(export),
            "--input",
            str(self.folder / "x.npy"),
            "-o",
            str(self.folder / "y.npy"),
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        logits = np.load(self.folder / "y.npy")
        self.assertEqual(logits.shape, (1, CONTEXT, 256))
        written = self.generate(
            cluster, export, "--prompt", text[:CONTEXT], "--max-new", "1", "--temperature", "0"
        )
        self.assertEqual(ord(written[CONTEXT]), logits[0, -1].argmax())
        np.save(self.folder / "x.npy", window.astype(np.int32) + 200)
        result = cluster.cli(
            "predict",
            str(export),
            "--input",
            str(self.folder / "x.npy"),
            "-o",
            str(self.folder / "y.npy"),
        )
        self.assertEqual(result.returncode, 2)
        self.assertIn("expected tokens in [0, 256)", result.stderr)

    def test_tokens(self):
        path = self.folder / "tokens.bin"
        cycle = [7, 1, 5, 2, 9, 3, 11]
        path.write_bytes(struct.pack("<1400H", *cycle * 200))
        with Cluster(shards=1, workers=1) as cluster:
            export = self.train(
                cluster, "tokens", {"tokens": {"path": str(path), "vocabulary": 12}}
            )
            written = self.generate(
                cluster, export, "--tokens", "7,1,5,2", "--max-new", "40", "--temperature", "0"
            )
            self.assertEqual(written, ",".join(map(str, (cycle * 7)[:44])) + "\n")
            self.refused(cluster, export, "the model's 12 tokens are not bytes", "--prompt", "a")


if __name__ == "__main__":
    unittest.main()
