"""Makes the pictures of docs/images/ from a real run: LeNet on MNIST, two workers, SSP(2).

Run by tools/pictures.sh. Argument: the folder for the pictures.
"""

import os
import sys
from pathlib import Path

from tests.e2e.browser import Browser
from tests.e2e.cluster import Cluster, job_file
from tests.e2e.page_test import VIEWS


def mnist_job(name, folder):
    """A job that trains for longer than the pictures take."""

    def idx(split):
        return {
            "idx": {
                "images": f"{folder}/{split}-images-idx3-ubyte.gz",
                "labels": f"{folder}/{split}-labels-idx1-ubyte.gz",
            }
        }

    return job_file(
        name,
        {"builtin": "lenet"},
        {
            "train": idx("train"),
            "test": idx("t10k"),
            "normalize": {"mean": [0.1307], "std": [0.3081]},
        },
        batch={"global": 128, "microBatches": 4},
        consistency={"ssp": {"staleness": 2}},
        optimizer={"adamw": {"learningRate": 0.001, "weightDecay": 0.01}},
        workers={"min": 2, "max": 2},
        evaluate={"everyEpochs": 1},
        stop={"epochs": 50},
    )


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    mnist = Path(os.environ["STARLING_DATA"]) / "mnist"
    with Cluster(shards=2, workers=2) as cluster, Browser() as browser:
        cluster.submit(mnist_job("mnist-lenet", mnist))
        cluster.wait_progress("mnist-lenet", epoch=2, step=1200, timeout=1500)
        address = f"http://127.0.0.1:{cluster.admin_port('coordinator')}/"
        for view, options in VIEWS.items():
            page = browser.open(address, **options)
            page.wait_for("document.querySelectorAll('#charts polyline').length >= 3")
            picture = folder / f"status-page-{view}.png"
            page.picture(picture, full=view != "phone")
            if page.complaints:
                raise RuntimeError(f"the browser complained: {page.complaints}")
            print(f"{picture}: {picture.stat().st_size} bytes")
        cluster.cli("cancel", "mnist-lenet")


if __name__ == "__main__":
    main()
