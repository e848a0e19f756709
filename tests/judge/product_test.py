"""The product's executor and updates agree with the judge, step by step: every optimizer on an
MLP and a CNN with batch norm, with parallel, short and empty micro-batches."""

import contextlib
import io
import os
import subprocess
import tempfile
import unittest

import trainer


class Product(unittest.TestCase):
    def judge(self, model, optimizer, clip):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([os.environ["RECORD_STEPS"], folder, model, optimizer, clip], check=True)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = trainer.main([folder])
            print(f"{model} {optimizer}\n{out.getvalue()}", flush=True)
            self.assertIn("steps=24", out.getvalue())
            self.assertEqual(status, 0, out.getvalue())


def add(model, optimizer, clip="none"):
    name = f"test_{model}_{optimizer}" + ("" if clip == "none" else f"_clip_{clip}")
    setattr(Product, name, lambda self: self.judge(model, optimizer, clip))


for net in ("mlp", "cnn"):
    for kind in ("sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "lamb"):
        add(net, kind)
add("mlp", "adamw", "parameter")
add("cnn", "nesterov", "parameter")

if __name__ == "__main__":
    unittest.main()
