"""The machine that a bench ran on."""

from pathlib import Path


def cpu_name():
    return next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        "?",
    )
