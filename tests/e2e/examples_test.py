"""Runs every job file of examples/, shortened, on a real cluster, and uses each result once.

Each example has a line in EXAMPLES: what shortens it, what it reads, and what is done with its
result. Data that a user brings (CSV, CIFAR's binary files, tokens) is made up here; examples that
use STARLING_DATA are skipped, and named, without it. Standard library only.
"""

import dataclasses
import io
import os
import random
import struct
import tarfile
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

from tests.e2e.cluster import ROOT, Cluster
from tests.e2e.trained import finish, submit

DATA = os.environ.get("STARLING_DATA", "")


@dataclasses.dataclass
class Example:
    settings: dict  # what shortens it
    needs: str = ""  # a folder of STARLING_DATA
    made: tuple = ()  # (environment variable, function that makes what it names)
    accuracy: bool = True  # a classifier: it prints its accuracy
    generate: tuple = ()  # arguments of `starling generate`
    predict: tuple = ()  # (dtype, sample shape) of made-up input for `starling predict`


def write_digits(folder):
    """Rows of 64 numbers of 0..16 with a bright spot that depends on the label, and the label."""
    source, path = random.Random(5), folder / "digits.csv"
    with open(path, "w", encoding="ascii") as file:
        for _ in range(500):
            label = source.randrange(10)
            pixels = [source.randrange(10) for _ in range(64)]
            pixels[label * 5] = 16
            file.write(",".join(map(str, [*pixels, label])) + "\n")
    return path


def write_cifar(folder):
    """Six files of 128 records: a label, then 3,072 bytes of noise around its brightness."""
    source = random.Random(6)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        with open(folder / name, "wb") as file:
            for _ in range(128):
                label = source.randrange(10)
                file.write(
                    bytes([label]) + bytes(25 * label + b % 25 for b in source.randbytes(3072))
                )
    return folder


def write_table(folder):
    """A table with a header: an id, three numbers, and two that depend on them."""
    source, path = random.Random(7), folder / "table.csv"
    with open(path, "w", encoding="ascii") as file:
        file.write("id,temperature,pressure,flow,yield,purity\n")
        for i in range(400):
            a, b, c = (source.random() for _ in range(3))
            file.write(f"{i},{a},{b},{c},{a + b * c},{a * a - c}\n")
    return path


def write_tokens(folder):
    """train.bin and val.bin of u16, as nanoGPT writes them: a cycle of tokens below 100."""
    for name, tokens in (("train.bin", 4000), ("val.bin", 400)):
        (folder / name).write_bytes(
            struct.pack(f"<{tokens}H", *(7 * i % 100 for i in range(tokens)))
        )
    return folder


def write_tars(*names):
    """Makes tar files of the first 24 test images of CIFAR-10, 32 x 32."""

    def write(folder):
        with tarfile.open(Path(DATA) / "cifar10/test-00000.tar") as source:
            members = [source.next() for _ in range(48)]
            content = [(member, source.extractfile(member).read()) for member in members]
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as tar:
                for member, data in content:
                    tar.addfile(member, io.BytesIO(data))
        return folder

    return write


SMALL_GPT = {"model.depth": 1, "model.width": 32, "model.heads": 2}
SMALL_IMAGES = {
    "data.train.webdataset.size": [32, 32],
    "data.test.webdataset.size": [32, 32],
    "batch.global": 8,
    "batch.microBatches": 2,
    "stop.steps": 3,
}
IMAGENET = write_tars("train-000.tar", "train-001.tar", "val-000.tar")
EXAMPLES = {
    "cifar_mobilenet.yaml": Example(
        {"batch.global": 16, "stop.steps": 3},
        made=("STARLING_CIFAR", write_cifar),
        predict=("|u1", (3, 32, 32)),
    ),
    "cifar_resnet18.yaml": Example(
        {"batch.global": 8, "stop.steps": 2},
        needs="cifar10",
        made=("STARLING_DATA", write_tars("cifar10/train-00000.tar", "cifar10/test-00000.tar")),
        predict=("<f4", (3, 32, 32)),
    ),
    "digits_branched.yaml": Example(
        {"stop.epochs": 2}, made=("STARLING_DIGITS", write_digits), predict=("<f8", (64,))
    ),
    "digits_checkpoint.yaml": Example(
        {"stop.epochs": 20}, made=("STARLING_DIGITS", write_digits), predict=("<f4", (64,))
    ),
    "digits_mlp.yaml": Example(
        {"stop.epochs": 2}, made=("STARLING_DIGITS", write_digits), predict=("<f4", (64,))
    ),
    "imagenet_resnet50.yaml": Example(
        SMALL_IMAGES,
        needs="cifar10",
        made=("STARLING_IMAGENET", IMAGENET),
        predict=("|u1", (3, 32, 32)),
    ),
    "imagenet_shufflenet.yaml": Example(
        SMALL_IMAGES,
        needs="cifar10",
        made=("STARLING_IMAGENET", IMAGENET),
        predict=("|u1", (3, 32, 32)),
    ),
    "mnist_cnn.yaml": Example({"stop.steps": 20}, needs="mnist", predict=("|u1", (28, 28))),
    "shakespeare_gpt.yaml": Example(
        {**SMALL_GPT, "stop.steps": 10}, needs="tinyshakespeare", generate=("--prompt", "ROMEO:")
    ),
    "table_regression.yaml": Example(
        {"stop.epochs": 4},
        made=("STARLING_TABLE", write_table),
        accuracy=False,
        predict=("<f8", (3,)),
    ),
    "tokens_gpt.yaml": Example(
        {
            **SMALL_GPT,
            "data.train.tokens.context": 16,
            "data.test.tokens.context": 16,
            "stop.steps": 20,
            "data.train.tokens.vocabulary": 100,
            "data.test.tokens.vocabulary": 100,
            "batch.global": 16,
        },
        made=("STARLING_TOKENS", write_tokens),
        generate=("--tokens", "7,14"),
        predict=("<i4", (16,)),
    ),
}


def write_npy(path, dtype, shape):
    """Zeros."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    size = int(dtype[2:])
    for dim in shape:
        size *= dim
    path.write_bytes(
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(size)
    )


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_each_has_a_line(self):
        self.assertEqual(
            sorted(EXAMPLES),
            sorted(path.name for path in (ROOT / "examples").glob("*.yaml")),
            "add the example to EXAMPLES, with what shortens it",
        )

    def run_example(self, name):
        example = EXAMPLES[name]
        if example.needs and not (Path(DATA) / example.needs).is_dir():
            self.skipTest(f"STARLING_DATA has no {example.needs}/")
        if example.made:
            variable, make = example.made
            environment = unittest.mock.patch.dict(os.environ, {variable: str(make(self.folder))})
            environment.start()
            self.addCleanup(environment.stop)
        with Cluster(shards=2, workers=2, checkpoints=True) as cluster:
            submit(cluster, name, "example", example.settings)
            result = finish(cluster, "example", time.monotonic(), timeout=300)
            self.assertEqual(result.status["state"], "SUCCEEDED")
            self.assertTrue(result.train_loss == result.train_loss, "it trained no epoch")
            if example.accuracy:
                self.assertTrue(0 <= result.accuracy <= 1, result)
            self.use(cluster, example)

    def use(self, cluster, example):
        if example.generate:
            written = cluster.cli("generate", "example", *example.generate, "--max-new", "4")
            self.assertEqual(written.returncode, 0, written.stderr)
            self.assertGreater(len(written.stdout), 4)
        if example.predict:
            dtype, shape = example.predict
            write_npy(self.folder / "x.npy", dtype, (3, *shape))
            predicted = cluster.cli(
                "predict",
                "example",
                "--input",
                str(self.folder / "x.npy"),
                "-o",
                str(self.folder / "y.npy"),
            )
            self.assertEqual(predicted.returncode, 0, predicted.stderr)
            self.assertIn(
                "(3, ", (self.folder / "y.npy").read_bytes()[:128].decode(errors="replace")
            )


def add_test(name):
    setattr(Examples, f"test_{name.split('.')[0]}", lambda self: self.run_example(name))


for file in EXAMPLES:
    add_test(file)

if __name__ == "__main__":
    unittest.main(verbosity=2)
