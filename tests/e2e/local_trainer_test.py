"""The bench's trainer without a parameter server learns; otherwise it is no upper bound."""

import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import binary, job_file


class LocalTrainer(unittest.TestCase):
    def test_the_loss_falls(self):
        with tempfile.TemporaryDirectory() as folder:
            images, labels = write_idx(folder, samples=500)  # the last batch is short
            job = Path(folder) / "job.json"
            job.write_text(
                json.dumps(
                    job_file(
                        "local",
                        {"builtin": "mlp", "hidden": [32]},
                        {"train": {"idx": {"images": images, "labels": labels}}},
                        optimizer={"momentum": {"learningRate": 0.05}},
                        stop={"epochs": 20},
                    )
                )
            )
            losses = []
            for steps in ("1", "200"):
                result = subprocess.run(
                    [binary("tools/bench/local_trainer"), str(job), "2", steps],
                    stdout=subprocess.PIPE,
                    text=True,
                    timeout=120,
                    check=True,
                )
                losses.append(float(re.search(r"loss=([0-9.]+)", result.stdout).group(1)))
            self.assertLess(losses[1], losses[0] / 2)


if __name__ == "__main__":
    unittest.main()
