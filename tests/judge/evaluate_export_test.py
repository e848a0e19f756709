"""evaluate_export.py on small files with a known accuracy."""

import contextlib
import gzip
import io
import json
import os
import struct
import tempfile
import unittest

import numpy as np

import datasets
import evaluate_export
import safetensors_file

LINEAR = {
    "input": {"name": "input", "shape": ["2"]},
    "parameters": [{"name": "w", "shape": ["2", "2"], "kind": "TRAINABLE"}],
    "nodes": [
        {"name": "fc", "op": "linear", "inputs": ["input"], "parameters": ["w"]},
        {"name": "loss", "op": "softmax_cross_entropy", "inputs": ["fc", "labels"]},
    ],
    "logits": "fc",
    "classes": "2",
}
FLAT = {"name": "flat", "op": "flatten", "inputs": ["input"]}


class EvaluateExport(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, data=None):
        path = os.path.join(self.folder, name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def export(self, graph, weight, preprocessing):
        path = self.path("export.safetensors")
        metadata = {
            "format": "pt",
            "model": json.dumps(graph),
            "preprocessing": json.dumps(preprocessing),
        }
        safetensors_file.write(path, metadata, {"w": np.array(weight, np.float32)})
        return path

    def printed(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(evaluate_export.main(arguments), 0)
        return out.getvalue()

    def test_csv(self):
        rows = self.path("rows.csv.gz", gzip.compress(b"1,0,0\n0,1,1\n2,1,0\n3,4,0\n"))
        export = self.export(LINEAR, [[1, 0], [0, 1]], {"test": {"csv": {"path": "elsewhere"}}})
        self.assertEqual(self.printed(export, rows), "test_accuracy=0.7500\n")
        self.assertEqual(evaluate_export.accuracy(export, [rows], batch=3), 0.75)
        # Normalisation per column moves the last row to the right side.
        export = self.export(
            LINEAR,
            [[1, 0], [0, 1]],
            {"test": {"csv": {}}, "normalize": {"mean": [0, 2], "std": [1, 1]}},
        )
        self.assertEqual(self.printed(export, rows), "test_accuracy=0.7500\n")

    def test_holdout(self):
        rows = [f"{i % 3},{1},{i % 2}" for i in range(40)]
        path = self.path("rows.csv", "\n".join(rows).encode())
        labels = np.arange(40) % 2
        held_out = datasets.held_out_rows(labels, 0.25, 7)
        self.assertEqual(len(held_out), 10)
        csv = {"holdout_fraction": 0.25, "holdout_seed": "7", "part": "PART_HOLDOUT"}
        export = self.export(LINEAR, [[1, 0], [0, 1]], {"test": {"csv": csv}})
        values = held_out % 3
        expected = (np.where(values >= 1, 0, 1) == labels[held_out]).mean()
        self.assertEqual(evaluate_export.accuracy(export, [path]), expected)
        camel = {"holdoutFraction": 0.25, "holdoutSeed": "7", "part": "PART_HOLDOUT"}
        export = self.export(LINEAR, [[1, 0], [0, 1]], {"test": {"csv": camel}})
        self.assertEqual(evaluate_export.accuracy(export, [path]), expected)
        csv["part"] = "PART_TRAIN"
        x, train_labels = datasets.load({"csv": csv}, {}, (2,), [path])
        self.assertEqual(len(x), 30)
        np.testing.assert_array_equal(train_labels, np.delete(labels, held_out))

    def test_idx(self):
        images = np.array([[[255, 0]], [[0, 255]], [[51, 0]]], np.uint8)
        images_path = self.path(
            "images.gz", gzip.compress(struct.pack(">4I", 0x803, 3, 1, 2) + images.tobytes())
        )
        labels_path = self.path("labels", struct.pack(">2I", 0x801, 3) + bytes([0, 1, 1]))
        graph = dict(LINEAR, input={"name": "input", "shape": ["1", "1", "2"]})
        graph["nodes"] = [FLAT, dict(LINEAR["nodes"][0], inputs=["flat"]), LINEAR["nodes"][1]]
        preprocessing = {"test": {"idx": {}}, "normalize": {"mean": [0.5], "std": [0.25]}}
        export = self.export(graph, [[1, 0], [0, 1]], preprocessing)
        x, _ = datasets.load(
            preprocessing["test"], preprocessing["normalize"], (1, 1, 2), [images_path, labels_path]
        )
        np.testing.assert_allclose(x[2, 0, 0], [-1.2, -2])
        self.assertEqual(self.printed(export, images_path, labels_path), "test_accuracy=0.6667\n")
        with self.assertRaises(ValueError):
            evaluate_export.accuracy(export, [images_path])


class Philox(unittest.TestCase):
    def test_known_answers_of_random123(self):
        self.assertEqual(
            datasets.philox4x32((0, 0, 0, 0), (0, 0)),
            [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        )
        self.assertEqual(
            datasets.philox4x32(
                (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
            ),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        )

    def test_the_same_rows_as_worker_data(self):  # worker/data/readers_test.cc has the same rows
        self.assertEqual(
            list(datasets.held_out_rows(np.zeros(20, int), 0.25, 7)), [0, 1, 9, 12, 14]
        )


if __name__ == "__main__":
    unittest.main()
