"""One run of MNIST under BSP, then SSP(3), then async, then BSP again, changed while it trains.

    policy_switch.py [--epochs N]

Needs STARLING_DATA with mnist/. The changes are requested after a fifth, two fifths and three
fifths of the steps. Prints the job's log lines about them, then `figure: ...`; exit status 1 unless
the accuracy is at least 0.985 and the log names the clock of each change.
"""

import argparse
import re
import sys
import time

from tests.e2e.cluster import Cluster
from tests.e2e.trained import finish, submit

LEAST_ACCURACY = 0.985
CHANGES = [
    (0.2, "ssp:3", "ssp(3)"),
    (0.4, "async", "async"),
    (0.6, "bsp", "bsp"),
]  # share, setting, name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    with Cluster(shards=2, workers=2, worker_flags=["--lanes", "1"]) as cluster:
        began = time.monotonic()
        submit(
            cluster,
            "mnist_cnn.yaml",
            "switched",
            {"stop.epochs": options.epochs, "consistency": "{bsp: {}}", "workers.min": 2},
        )
        steps = int(cluster.wait_progress("switched", step=1)["steps"])
        for share, policy, _ in CHANGES:
            cluster.wait_progress("switched", step=int(share * steps), timeout=1800)
            changed = cluster.cli("set", "switched", f"consistency={policy}")
            if changed.returncode != 0:
                raise RuntimeError(
                    f"set consistency={policy}: exit {changed.returncode}: {changed.stderr}"
                )
        result = finish(cluster, "switched", began)
        log = cluster.cli("logs", "switched").stdout
    print(log)
    in_force = re.findall(r"policy \d+, (\S+), is in force from clock (\d+)", log)
    found = [name for name, _ in in_force] == [name for _, _, name in CHANGES]
    clocks = ", ".join(f"{name} from {clock}" for name, clock in in_force)
    print(
        f"figure: accuracy {result.accuracy:.4f} after {options.epochs} epochs; "
        f"{clocks or 'no change'} of {steps} steps"
    )
    return 0 if result.accuracy >= LEAST_ACCURACY and found else 1


if __name__ == "__main__":
    sys.exit(main())
