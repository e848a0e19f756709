"""Lines of C++ without tests, blank lines and comments, at two commits and at HEAD.

    lines.py BEFORE AFTER

Comments are taken out first; what is left of both sides is formatted by the working tree's
.clang-format, so that neither wording nor layout counts. Prints a table by folder, then
`figure: ...`; exit status 1 unless there are fewer lines after than before. HEAD, where other work
has been added, is not judged. Standard library only.
"""

import collections
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CPP = re.compile(r"\.(cc|h|cu|cuh)$")
# What only tests use: the emulated CUDA runtime, too.
TESTS = re.compile(r"^tests/|/testing/|_test\.(cc|cu)$|^kernels/cuda/emulation/")
# Folders that have another name now.
RENAMED = {
    "common/executor": "common/event_loop",
    "server/coordinator/service": "server/coordinator/host",
    "server/shard/service": "server/shard/host",
    "worker/runtime": "worker/host",
    "worker/session": "worker/core",
}
TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
  | R"(?P<delimiter>[^()\\\s]*)\(.*?\)(?P=delimiter)"
  | "(?:\\.|[^"\\\n])*"
  | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'   # not the separator of digits
    """,
    re.VERBOSE | re.DOTALL,
)


def strip(text):
    """The code without comments and blank lines."""
    text = TOKEN.sub(lambda token: " " if token.group("comment") else token.group(), text)
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip()) + "\n"


def git(*words):
    return subprocess.run(["git", *words], check=True, stdout=subprocess.PIPE).stdout


def counted(names):
    return [name for name in names if CPP.search(name) and not TESTS.search(name)]


def of_commit(commit):
    names = counted(git("ls-tree", "-r", "--name-only", commit).decode().splitlines())
    return {name: git("show", f"{commit}:{name}").decode() for name in names}


def folder_of(name):
    """Its folder, at most three deep, by today's name."""
    folder = "/".join(name.split("/")[:-1][:3])
    for old, new in RENAMED.items():
        if folder == old or folder.startswith(old + "/"):
            return new + folder[len(old) :]
    return folder


def lines_by_folder(sources, style):
    lines = collections.Counter()
    with tempfile.TemporaryDirectory() as place:
        files = {}
        for index, (name, text) in enumerate(sorted(sources.items())):
            # .cc, so that every file is formatted as C++ (a .h may also be C).
            files[name] = Path(place) / f"{index}.cc"
            files[name].write_text(strip(text))
        paths = list(map(str, files.values()))
        for begin in range(0, len(paths), 100):
            subprocess.run(
                ["clang-format-16", "-i", f"--style=file:{style}", *paths[begin : begin + 100]],
                check=True,
            )
        for name, path in files.items():
            lines[folder_of(name)] += sum(bool(line.strip()) for line in path.open())
    return lines


def main():
    commits = [*sys.argv[1:3], "HEAD"]
    style = Path(".clang-format").resolve()
    before, after, now = (lines_by_folder(of_commit(commit), style) for commit in commits)
    print(f"{'folder':<36} {commits[0]:>8} {commits[1]:>8} {'more':>8} {commits[2]:>8}")
    for folder in sorted(before.keys() | after.keys() | now.keys()):
        more = after[folder] - before[folder]
        print(
            f"{folder:<36} {before[folder]:>8} {after[folder]:>8} {more:>+8} {now[folder]:>8}"
        )
    old, new = before.total(), after.total()
    print(
        f"figure: {new} lines at {commits[1]}, {old} at {commits[0]}: {new - old:+d}; "
        f"{now.total()} at {commits[2]}"
    )
    return 0 if new < old else 1


if __name__ == "__main__":
    sys.exit(main())
