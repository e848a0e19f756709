"""How fast the CPU trains lenet, resnet18 and a GPT, against PyTorch and the machine's limit.

A sample counts when its forward pass, its backward pass and its share of the step are done.
Starling (compute_bench) and PyTorch (torch_peer.py) are two processes that take turns in one run,
with as many threads each; PyTorch in the fastest of its variants, which are compared first. The
limit is the speed of oneDNN's matrix products on the same threads, in the same turns. See
docs/performance.md.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.bench.machine import cpu_name  # noqa: E402

NETS = {
    "lenet": "batch 128, 28 x 28",
    "resnet18": "batch 64, 32 x 32",
    "gpt": "batch 8, 256 tokens, 6 layers of width 384",
}
IMAGE_VARIANTS = [
    (mode, layout) for mode in ("eager", "compiled") for layout in ("contiguous", "channels_last")
]
VARIANTS = {
    "lenet": IMAGE_VARIANTS,
    "resnet18": IMAGE_VARIANTS,
    "gpt": [("eager", "contiguous"), ("compiled", "contiguous")],
}
CHOOSING_ROUNDS = 3


class Contender:
    """A process that answers each line with the work that it did in that many seconds."""

    ANSWER_SECONDS = 600  # a net's first request builds and compiles it

    def __init__(self, name, command, env=None):
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.about = self._answer("start")

    def _answer(self, request):
        late = threading.Timer(self.ANSWER_SECONDS, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        if not line:
            status = self._process.wait()
            how = (
                f"did not answer '{request}' within {self.ANSWER_SECONDS} s"
                if status == -signal.SIGKILL
                else f"ended with status {status}: see above"
            )
            sys.exit(f"compute: {self._name} {how}")
        return json.loads(line)

    def rate(self, *request):
        line = " ".join(map(str, request))
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._answer(line)
        return answer["units"] / answer["seconds"]

    def stop(self):
        self._process.stdin.close()
        self._process.wait()


def peers():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "starling" / "peers"
    if not (folder / "bin" / "python3").exists():
        sys.exit(f"compute: expected PyTorch in {folder}, found none: run tools/setup.sh --peers")
    return folder


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def precisions(instruction_set):
    """The types that this CPU multiplies."""
    return ("fp32", "bf16") if "bf16" in instruction_set or "amx" in instruction_set else ("fp32",)


def best_variant(torch, precision, net, seconds):
    """PyTorch's fastest way to train the net, by the median of a few turns."""
    rates = {variant: [] for variant in VARIANTS[net]}
    for _ in range(CHOOSING_ROUNDS):
        for variant in rates:
            rates[variant].append(torch.rate(net, precision, *variant, seconds))
    medians = {variant: statistics.median(found) for variant, found in rates.items()}
    print(
        f"{precision}, {net}: PyTorch, samples/s: "
        + ", ".join(f"{' '.join(variant)} {median:.1f}" for variant, median in medians.items()),
        flush=True,
    )
    return max(medians, key=medians.get)


def measure(starling, torch, precision, rounds, seconds):
    """Rates by contender: (net, "starling"), (net, "torch"), and "matmul"; and the variants."""
    variants = {net: best_variant(torch, precision, net, seconds) for net in NETS}
    rates = {"matmul": []}
    for net in NETS:
        starling.rate(net, precision, seconds)  # warms up
    for turn in range(rounds):
        rates["matmul"].append(starling.rate("matmul", precision, seconds))
        for net, variant in variants.items():
            turns = [
                ("starling", lambda: starling.rate(net, precision, seconds)),
                ("torch", lambda: torch.rate(net, precision, *variant, seconds)),
            ]
            for who, rate in turns if turn % 2 == 0 else reversed(turns):
                rates.setdefault((net, who), []).append(rate())
    return rates, variants


def report(precision, starling, rates, variants):
    ceiling = statistics.median(rates["matmul"])
    print(f"\n{precision}: oneDNN's matrix product reaches {ceiling / 1e9:.0f} GFLOP/s")
    print(
        f"  {'':<10} {'samples/s':>10} {'PyTorch':>10}  {'ratio':<24} "
        f"{'GFLOP/s':>8} {'share':>6}"
    )
    lines = []
    for net, meaning in NETS.items():
        ours, theirs = rates[net, "starling"], rates[net, "torch"]
        ratio = spread([a / b for a, b in zip(ours, theirs)])
        speed = statistics.median(ours) * starling.about["flops"][net]
        print(
            f"  {net:<10} {statistics.median(ours):>10.1f} {statistics.median(theirs):>10.1f}  "
            f"{ratio:<24} {speed / 1e9:>8.0f} {speed / ceiling:>6.2f}   {meaning}; "
            f"PyTorch {' '.join(variants[net])}"
        )
        lines.append(f"compute {precision} {net} ratio: {ratio}")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3, help="of each turn")
    parser.add_argument(
        "--threads",
        type=int,
        choices=(1, 2, 4, 8),
        default=max(n for n in (1, 2, 4, 8) if n <= os.cpu_count()),
        help="of each side; default: as many as cores, at most 8",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        action="append",
        help="only this one; default: fp32, and bf16 where the CPU multiplies it",
    )
    args = parser.parse_args()
    folder = peers()
    threads = str(args.threads)
    torch = Contender(
        "PyTorch",
        [folder / "bin" / "python3", ROOT / "tools/bench/torch_peer.py", threads],
        os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")},
    )
    starling = Contender("compute_bench", [ROOT / "bazel-bin/tools/bench/compute_bench", threads])
    print(
        f"{cpu_name()}, {starling.about['instruction_set']}; {threads} threads each; "
        f"oneDNN {starling.about['onednn']}; PyTorch {torch.about['version']}",
        flush=True,
    )
    for precision in args.precision or precisions(starling.about["instruction_set"]):
        rates, variants = measure(starling, torch, precision, args.rounds, args.seconds)
        report(precision, starling, rates, variants)
    starling.stop()
    torch.stop()


if __name__ == "__main__":
    main()
