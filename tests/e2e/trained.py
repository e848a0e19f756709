"""Runs job files of examples/ on a cluster, for acceptance; returns results and durations.

Standard library only.
"""

import dataclasses
import json
import re
import time

from tests.e2e.cluster import ROOT, parameters_sha256


@dataclasses.dataclass
class Result:
    name: str
    accuracy: float  # nan: the job has none
    test_loss: float
    train_loss: float
    seconds: float
    status: dict

    def __str__(self):
        accuracy = "" if self.accuracy != self.accuracy else f"test accuracy {self.accuracy:.4f}, "
        return (
            f"{self.name}: {accuracy}test loss {self.test_loss:.4f}, train loss "
            f"{self.train_loss:.4f}, {self.seconds:.0f} s"
        )


def submit(cluster, example, name, settings):
    """Submits examples/EXAMPLE under that name, with `settings`: {"spec.key": value}."""
    arguments = ["submit", "-f", str(ROOT / "examples" / example), "--set", f"metadata.name={name}"]
    for key, value in settings.items():
        arguments += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    result = cluster.cli(*arguments, timeout=300)
    if result.returncode != 0:
        raise RuntimeError(f"{name}: {result.stderr}")


def finish(cluster, name, began, timeout=3600):
    """Waits for the job's success and reads its last evaluation."""
    result = cluster.cli("wait", name, "--timeout", f"{timeout}s", timeout=timeout + 60)
    seconds = time.monotonic() - began
    if result.returncode != 0:
        raise RuntimeError(f"{name}: exit {result.returncode}: {result.stderr}")
    status = cluster.describe(name)
    epochs = status["epochsDone"]
    evaluated = [epoch for epoch in epochs if epoch.get("evaluated")]
    nan = float("nan")
    last = evaluated[-1] if evaluated else {}
    printed = re.search(r"^test_accuracy=(\S+)$", result.stdout, re.M)
    return Result(
        name,
        float(printed.group(1)) if printed else nan,
        last.get("testLoss", nan),
        epochs[-1]["trainLoss"] if epochs else nan,
        seconds,
        status,
    )


def train(cluster, example, name, settings, timeout=3600):
    began = time.monotonic()
    submit(cluster, example, name, settings)
    result = finish(cluster, name, began, timeout)
    print(result, flush=True)
    return result


def digest(cluster, name):
    """SHA-256 over names, types, shapes and bytes of the job's parameters."""
    return parameters_sha256(cluster.export(name))
