"""Two builds of Starling beside each other, in turns.

    speed.py BEFORE AFTER

Both are trees with built programs. Measures bench overhead (samples/s of its cluster; the ratio to
the local trainer is printed, too) and bench compute (samples/s, without PyTorch). A turn measures
both trees, and the first of them alternates. What counts is the median over the turns of
after / before. Prints `figure: ...`; exit status 1 unless each is at least BOUND.
"""

import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

BOUND = 0.97
TURNS = 9
OVERHEAD_SECONDS = 8
COMPUTE_SECONDS = 3
NETS = ("lenet", "resnet18", "gpt")


def overhead(tree):
    """Samples/s of the cluster, and its ratio to the local trainer."""
    output = subprocess.run(
        [sys.executable, "tools/bench/overhead.py", "--rounds=1", f"--seconds={OVERHEAD_SECONDS}"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    row = re.search(r"^ +0 +(\d+) +\d+ +([\d.]+)", output, re.MULTILINE)
    return float(row.group(1)), float(row.group(2))


class ComputeBench:
    """A compute_bench, which works only while it is asked."""

    def __init__(self, tree):
        threads = max(n for n in (1, 2, 4, 8) if n <= len(os.sched_getaffinity(0)))
        self._process = subprocess.Popen(
            [tree / "bazel-bin/tools/bench/compute_bench", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about = json.loads(self._process.stdout.readline())

    def rate(self, net, precision):
        self._process.stdin.write(f"{net} {precision} {COMPUTE_SECONDS}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["units"] / answer["seconds"]

    def stop(self):
        self._process.stdin.close()
        self._process.wait()


def in_turns(measure, before, after):
    """[(what was measured of before, of after)] for each turn."""
    turns = []
    for turn in range(TURNS):
        found = {}
        for side in (before, after) if turn % 2 == 0 else (after, before):
            found[id(side)] = measure(side)
        turns.append((found[id(before)], found[id(after)]))
    return turns


def ratio(name, pairs):
    """The median of after / before; prints what it is made of."""
    ratios = [after / before for before, after in pairs]
    median = statistics.median(ratios)
    print(
        f"{name}: before {statistics.median(p[0] for p in pairs):.1f}, now "
        f"{statistics.median(p[1] for p in pairs):.1f} samples/s; now / before "
        f"{median:.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )
    return median


def main():
    trees = [Path(argument).resolve() for argument in sys.argv[1:3]]
    ratios = {}
    turns = in_turns(overhead, *trees)
    ratios["overhead"] = ratio("overhead", [(b[0], a[0]) for b, a in turns])
    to_local = [statistics.median(turn[side][1] for turn in turns) for side in (0, 1)]
    print(f"overhead: of the local trainer's samples/s: before {to_local[0]}, now {to_local[1]}")
    benches = [ComputeBench(tree) for tree in trees]
    instructions = benches[1].about["instruction_set"]
    bf16 = "bf16" in instructions or "amx" in instructions
    for precision in ("fp32", "bf16") if bf16 else ("fp32",):
        for net in NETS:
            for bench in benches:
                bench.rate(net, precision)  # warms up
            pairs = in_turns(lambda bench: bench.rate(net, precision), *benches)
            ratios[f"{net} {precision}"] = ratio(f"compute {net} {precision}", pairs)
    for bench in benches:
        bench.stop()
    print("figure: now / before: " + ", ".join(f"{what} {r:.3f}" for what, r in ratios.items()))
    return 0 if min(ratios.values()) >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
