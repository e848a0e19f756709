"""examples/shakespeare_gpt.yaml: a GPT on the bytes of tinyshakespeare, a tenth for validation.

    gpt.py [--epochs N]

Needs STARLING_DATA with tinyshakespeare/. Prints a sample of the model's output, then
`figure: ...`; exit status 1 unless the validation loss is at most 1.65 nats per byte within 30
minutes.
"""

import argparse
import sys

from tests.e2e.cluster import Cluster
from tests.e2e.trained import train

MOST_LOSS = 1.65
MOST_SECONDS = 30 * 60


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    settings = {"workers.min": 2, "workers.max": 2}
    if options.epochs:
        settings |= {"stop.epochs": options.epochs, "evaluate.everyEpochs": options.epochs}
    with Cluster(shards=1, workers=2, worker_flags=["--lanes", "1"]) as cluster:
        result = train(cluster, "shakespeare_gpt.yaml", "shakespeare", settings, 2 * MOST_SECONDS)
        written = cluster.cli(
            "generate",
            "shakespeare",
            "--prompt",
            "ROMEO:",
            "--max-new",
            "500",
            "--temperature",
            "0.8",
            "--top-k",
            "40",
            "--seed",
            "1",
            timeout=600,
        )
        print(written.stdout if written.returncode == 0 else written.stderr, flush=True)
    print(
        f"figure: validation loss {result.test_loss:.4f} nats per byte, {result.seconds / 60:.1f} "
        f"minutes, {result.status['parameters']:,} parameters"
    )
    return (
        0
        if result.test_loss <= MOST_LOSS
        and result.seconds <= MOST_SECONDS
        and written.returncode == 0
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
