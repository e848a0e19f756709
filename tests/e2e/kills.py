"""A picture of a loss curve that does not move while a shard, a worker and the coordinator die.

    kills.py run LOG [--seed S]    trains LeNet on MNIST twice, in BSP; writes what happened
    kills.py draw LOG SVG          draws that

The second time each role is killed once (SIGKILL) and started again, at steps drawn by the seed.
`run` needs STARLING_DATA with mnist/, takes some minutes, and fails unless both runs end with the
same parameters, to the bit. Standard library only.
"""

import argparse
import json
import random
import sys
import time
from xml.sax.saxutils import escape

from tests.e2e import mnist
from tests.e2e.cluster import Cluster, parameters_sha256
from tests.e2e.faults import KILL, Faults

SHARDS, WORKERS, EPOCHS = 3, 2, 2
TURNS = (  # when, as a share of the run
    ("shard", "shard-1", 0.25),
    ("worker", "worker-0", 0.5),
    ("coordinator", "coordinator", 0.75),
)
JITTER = 0.08  # of the run, to either side


def train(cluster, name, turns):
    """Trains with a kill at each turn, which is (role, process, share of the steps)."""
    faults = Faults(cluster, 0, {name})
    mnist.submit(
        cluster,
        name,
        # A step takes about as long as a point of the curve, which is the mean of its steps.
        "batch.global=512",
        "batch.microBatches=8",
        "consistency.bsp={}",
        f"stop.epochs={EPOCHS}",
    )
    faults.wait_replicated()
    turns, progress, kills = list(turns), [], []
    began = time.monotonic()
    while True:
        status = faults.wait(lambda: cluster.describe(name), 60, "the coordinator")
        progress.append([round(time.monotonic() - began, 2), status["step"]])
        if status["state"] != "RUNNING":
            break
        if turns and status["step"] >= turns[0][2] * status["steps"]:
            role, process, _ = turns.pop(0)
            faults.wait_replicated()
            fault = faults.strike(role, process, KILL, 0)
            kills.append([process, round(fault.at - began, 1), status["step"]])
        time.sleep(0.2)
    if status["state"] != "SUCCEEDED" or turns:
        raise RuntimeError(f"{name} is {status['state']} with {turns} to come: {status['reason']}")
    curves = json.loads(cluster.cli("metrics", name, "-o", "json").stdout)
    return {
        "loss": [[point["step"], round(point["trainLoss"], 5)] for point in curves["points"]],
        "progress": progress,
        "kills": kills,
        "accuracy": status["epochsDone"][-1]["testAccuracy"],
        "sha256": parameters_sha256(cluster.export(name)),
    }


def run(seed):
    """The log of both runs."""
    source = random.Random(seed)
    turns = [
        (role, process, share + source.uniform(-JITTER, JITTER)) for role, process, share in TURNS
    ]
    with Cluster(shards=SHARDS, workers=WORKERS, worker_flags=["--lanes", "1"]) as cluster:
        undisturbed = train(cluster, "undisturbed", [])
        killed = train(cluster, "killed", turns)
    if undisturbed["sha256"] != killed["sha256"]:
        raise RuntimeError(f"other parameters: {undisturbed['sha256']}, {killed['sha256']}")
    return {"seed": seed, "undisturbed": undisturbed, "killed": killed}


# ---- Drawing ------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT = 860, 60, 20
CHARACTER = 6.5  # the width of one, about
PALE, LINE, MARK, TEXT = "#c3c9d1", "#1f5fbf", "#c0392b", "#24292f"


class Panel:
    """A rectangle with two axes from 0."""

    def __init__(self, top, height, x_max, y_max):
        self.top, self.height = top, height
        self.x_max, self.y_max = x_max, y_max

    def x(self, value):
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max

    def y(self, value):
        return self.top + self.height * (1 - value / self.y_max)

    def line(self, points, color, width):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return (
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}" '
            'stroke-linejoin="round"/>'
        )

    def axes(self, x_title, y_title):
        bottom, right = self.top + self.height, WIDTH - RIGHT
        parts = [
            f'<path d="M{LEFT} {self.top}V{bottom}H{right}" fill="none" stroke="{TEXT}"/>',
            text(right, bottom + 32, x_title, "end"),
            text(LEFT, self.top - 8, y_title),
        ]
        for i in range(5):
            x, y = self.x_max * i / 4, self.y_max * i / 4
            parts.append(text(self.x(x), bottom + 16, f"{x:.0f}", "middle"))
            parts.append(text(LEFT - 6, self.y(y) + 4, f"{y:.3g}", "end"))
        return parts

    def mark(self, x, label, y):
        """A kill: a line from top to bottom, and a label that stands beside it at height y."""
        at = self.x(x)
        room = WIDTH - RIGHT - at - 5
        beside = (at + 5, "start") if len(label) * CHARACTER < room else (at - 5, "end")
        return [
            f'<path d="M{at:.1f} {self.top}V{self.top + self.height}" stroke="{MARK}" '
            'stroke-dasharray="4 3"/>',
            text(beside[0], y, label, beside[1], color=MARK),
        ]


def text(x, y, words, anchor="start", color=TEXT, size=12):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" '
        f'font-size="{size}">{escape(words)}</text>'
    )


def draw(log):
    """The SVG."""
    undisturbed, killed = log["undisturbed"], log["killed"]
    steps = killed["progress"][-1][1]
    seconds = max(run["progress"][-1][0] for run in (undisturbed, killed))
    loss = Panel(70, 230, steps, max(y for run in (undisturbed, killed) for _, y in run["loss"]))
    time_of = Panel(370, 120, seconds, steps)
    parts = [
        text(
            LEFT,
            24,
            f"LeNet on MNIST, BSP, {SHARDS} shards, {WORKERS} workers: a shard, a worker and the "
            f"coordinator die (seed {log['seed']})",
            size=14,
        ),
        f'<path d="M{WIDTH - 330} 44h24" stroke="{PALE}" stroke-width="6"/>',
        text(WIDTH - 300, 48, "undisturbed"),
        f'<path d="M{WIDTH - 190} 44h24" stroke="{LINE}" stroke-width="1.5"/>',
        text(WIDTH - 160, 48, "with three kills"),
        *loss.axes("steps", "training loss"),
        *time_of.axes("seconds", "steps"),
    ]
    for panel, figure in ((loss, "loss"), (time_of, "progress")):
        parts.append(panel.line(undisturbed[figure], PALE, 6))
        parts.append(panel.line(killed[figure], LINE, 1.5))
    for row, (process, at, step) in enumerate(killed["kills"]):
        label = f"kill -9 {process} at {at:.1f} s, step {step}"
        parts += loss.mark(step, label, loss.top + 14 + 16 * row)
        parts += time_of.mark(at, process, time_of.top + time_of.height - 8)
    parts.append(
        text(
            LEFT,
            548,
            f"After {steps} steps both runs have the same parameters (SHA-256 "
            f"{killed['sha256'][:16]}...) and test accuracy {killed['accuracy']:.4f}.",
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 564" '
        f'font-family="sans-serif">\n<rect width="{WIDTH}" height="564" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("log")
    running.add_argument("--seed", type=int, default=1)
    drawing = verbs.add_parser("draw")
    drawing.add_argument("log")
    drawing.add_argument("svg")
    options = parser.parse_args()
    if options.verb == "run":
        log = run(options.seed)
        with open(options.log, "w", encoding="utf-8") as file:
            json.dump(log, file)
    else:
        with open(options.log, encoding="utf-8") as file:
            picture = draw(json.load(file))
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
