"""Libraries that a test preloads into daemons, and numbers that it shares with them.

    library = preload.library("wall_clock.c", directory)
    number = preload.Number(directory / "ahead")
    command = ["env", f"LD_PRELOAD={library}", f"WALL_CLOCK_FILE={number.path}", *command]
"""

import mmap
import struct
import subprocess

from tests.e2e.cluster import ROOT


def library(source, directory):
    """Compiles tests/e2e/`source`; the path of the library."""
    made = directory / source.replace(".c", ".so")
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
    subprocess.run(
        ["gcc", *flags, "-o", str(made), str(ROOT / "tests/e2e" / source), "-ldl", "-pthread"],
        check=True,
    )
    return made


class Number:
    """An int64_t in a file, which others map; 0 at first."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(struct.pack("<q", 0))
        with open(path, "r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 8)

    @property
    def value(self):
        return struct.unpack("<q", self._bytes[:])[0]

    @value.setter
    def value(self, value):
        self._bytes[:] = struct.pack("<q", value)
