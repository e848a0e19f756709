"""What a worker allocates while it trains, by caller of malloc: nothing in our own code.

    allocations.py [--steps N] [--stacks N] [--cuda-library FILE]

Needs STARLING_DATA with mnist/ and tinyshakespeare/. A worker whose malloc counts
(tests/allocations) trains lenet on MNIST and a small GPT on text, each over 2 shards under SSP(1).
After a warm-up, N steps are counted. Prints the callers with their counts, and the bytes in use;
exit status 1 unless our own code never called and the bytes in use do not grow. Runs on the CPU, or
with FILE on the GPU, whose memory use must not grow either.
"""

import argparse
import json
import signal
import statistics
import sys
import time

from tests.e2e.cluster import Cluster, wait_until
from tests.e2e.trained import submit

WORKER = "tests/allocations/counting-worker"
OWNERS = ("ours", "oneDNN", "gRPC", "protobuf", "image decoder", "CUDA")
# Steps before counting, by which pools and rings have grown to their final size.
WARM_UP = 300
# Bytes in use fluctuate with gRPC's buffers. They grow if the median of the last third of the
# samples exceeds that of the first third by more than this.
GROWTH_SHARE, GROWTH_BYTES = 0.01, 256 << 10
# A worker samples the GPU's memory once a second, and reports as often.
DEVICE_SECONDS = 2.5


def counting_cluster(cuda_library=None):
    device = ["gpu", "--cuda-library", cuda_library] if cuda_library else ["cpu"]
    return Cluster(
        shards=2,
        workers=1,
        worker_flags=["--lanes", "2", "--device", *device],
        worker_binary=WORKER,
    )


def device_peak(cluster):
    """The GPU's peak memory use so far, in bytes."""
    time.sleep(DEVICE_SECONDS)
    return int(cluster.get("workers")[0]["memory"]["devicePeakBytes"])


def count(cluster, job, steps, warm_up=WARM_UP, timeout=300):
    """Counts in `worker-0` for at least `steps` steps of `job`; returns counts and "steps"."""
    path = cluster.directory / "allocations.json"
    path.unlink(missing_ok=True)
    cluster.wait_progress(job, step=warm_up, timeout=timeout)
    cluster.kill("worker-0", signal.SIGUSR1)
    begin = cluster.describe(job)["step"]  # counting started before this, and ends after the next
    end = cluster.wait_progress(job, step=begin + steps, timeout=timeout)
    if end["state"] != "RUNNING":
        raise RuntimeError(
            f"{job} ended after {end['step']} steps, before {steps} were counted from {begin}"
        )
    cluster.kill("worker-0", signal.SIGUSR2)
    wait_until(path.exists, 120, "the worker's counts")
    return {**json.loads(path.read_text()), "steps": end["step"] - begin}


def calls_by_owner(counted):
    calls = dict.fromkeys(OWNERS, 0)
    for stack in counted["calls"]:
        calls[stack["owner"]] += stack["calls"]
    return calls


def growth(counted):
    """(growth in bytes, allowed bytes)."""
    samples = counted["in_use"]
    third = len(samples) // 3
    first, last = statistics.median(samples[:third]), statistics.median(samples[-third:])
    return last - first, max(GROWTH_BYTES, GROWTH_SHARE * first)


def describe(job, counted, stacks):
    """The report as lines of text."""
    calls = calls_by_owner(counted)
    grown, allowed = growth(counted)
    first = statistics.median(counted["in_use"])
    yield (
        f"{job}: {counted['steps']} steps; calls of malloc: "
        + ", ".join(f"{owner} {number}" for owner, number in calls.items())
        + f"; {first / 2**20:.1f} MiB in use, {grown / 2**10:+.1f} KiB "
        f"(allowed: {allowed / 2**10:.0f})"
    )
    for stack in [s for s in counted["calls"] if s["owner"] == "ours"][:stacks]:
        yield f"  ours: {stack['calls']} calls, {stack['bytes']} bytes"
        yield from (f"    {function}" for function in stack["stack"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--stacks", type=int, default=20, help="how many stacks of our own calls are printed"
    )
    parser.add_argument("--cuda-library", help="train on the GPU, through this libstarling_cuda.so")
    options = parser.parse_args()
    ssp = {
        "consistency": "{ssp: {staleness: 1}}",
        "workers": "{min: 1, max: 1}",
        "evaluate": "{everyEpochs: 100}",
        "stop.epochs": 100,
    }
    jobs = {
        "lenet": ("mnist_cnn.yaml", ssp),
        "gpt": (
            "shakespeare_gpt.yaml",
            {**ssp, "model.depth": 2, "model.width": 64, "model.heads": 2, "batch.global": 16},
        ),
    }
    figures, good = [], True
    for name, (example, settings) in jobs.items():
        taken = []  # from the GPU, before and after
        with counting_cluster(options.cuda_library) as cluster:
            submit(cluster, example, name, settings)
            if options.cuda_library:
                cluster.wait_progress(name, step=WARM_UP, timeout=300)
                taken.append(device_peak(cluster))
            counted = count(cluster, name, options.steps)
            if options.cuda_library:
                taken.append(device_peak(cluster))
        print("\n".join(describe(name, counted, options.stacks)), flush=True)
        calls = calls_by_owner(counted)
        grown, allowed = growth(counted)
        figures.append(
            f"{name}: {calls['ours']} in {counted['steps']} steps, {grown / 1024:+.0f} KiB in use"
        )
        good = good and calls["ours"] == 0 and counted["lost"] == 0 and grown <= allowed
        if taken:
            figures[
                -1
            ] += f", {taken[1] - taken[0]:+} bytes of {taken[0] / 2**20:.1f} MiB on the GPU"
            good = good and 0 < taken[1] <= taken[0]
    print(f"figure: {'; '.join(figures)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
