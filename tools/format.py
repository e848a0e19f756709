#!/usr/bin/env python3
"""Formats C++ by .clang-format, and finds lines beyond column 100, in prose too.

    tools/format.py [--check]

Without --check files are rewritten. Lines that a formatter leaves too long are only listed: in C++
those inside raw string literals and those with a URL may be; in Markdown tables, headings, code
blocks and lines that are one link. Needs clang-format-16 (tools/setup.sh --tests).
Exit status: 0 all is well, 1 a file differs or a line is too long, 2 usage.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

COLUMNS = 100
CPP = {".cc", ".h", ".cu", ".cuh"}
OTHERS = {".py", ".sh", ".md", ".proto", ".bazel", ".bzl"}
FORMATTER = "clang-format-16"


def files(root):
    """The tree's files: those of git, or all files where there is no repository."""
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
    )
    names = listed.stdout.splitlines()
    if listed.returncode != 0:
        names = [str(path.relative_to(root)) for path in Path(root).rglob("*")]
    return sorted(name for name in names if os.path.isfile(os.path.join(root, name)))


def raw_strings(lines):
    """Yields for each line of C++ whether a part of it is inside a raw string literal."""
    end = None
    for line in lines:
        inside, rest = end is not None, line
        while True:
            if end is None:
                begin = re.search(r'R"([^ ()\\]*)\(', rest)
                if not begin:
                    break
                inside, end, rest = True, ")" + begin.group(1) + '"', rest[begin.end() :]
            else:
                at = rest.find(end)
                if at < 0:
                    break
                rest, end = rest[at + len(end) :], None
        yield inside


def exempt_markdown(lines):
    """Yields for each line of Markdown whether it may be long."""
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith(("```", "~~~"))
        yield fenced or fence or line.lstrip().startswith(("|", "#", "<")) or "](" in line
        fenced ^= fence


def long_lines(name, text):
    """Yields the numbers of lines that are too long."""
    lines = text.split("\n")
    exempt = [False] * len(lines)
    if Path(name).suffix in CPP:
        exempt = raw_strings(lines)
    elif Path(name).suffix == ".md":
        exempt = exempt_markdown(lines)
    for number, (line, allowed) in enumerate(zip(lines, exempt), 1):
        if len(line) > COLUMNS and not allowed and "://" not in line:
            yield number


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    check = bool(sys.argv[1:])
    root = Path(__file__).resolve().parent.parent
    names = files(root)
    wrong = 0
    cpp = [str(root / name) for name in names if Path(name).suffix in CPP]
    for begin in range(0, len(cpp), 100):
        mode = ["--dry-run", "-Werror"] if check else ["-i"]
        command = [FORMATTER, "--style=file", *mode, *cpp[begin : begin + 100]]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            wrong += 1
            differing = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", done.stderr, re.M)))
            for path in differing:
                print(f"{os.path.relpath(path, root)}: not formatted: run tools/format.py")
            if not differing:
                print(done.stderr, file=sys.stderr)
    for name in names:
        if Path(name).suffix not in CPP | OTHERS:
            continue
        for number in long_lines(name, (root / name).read_text(encoding="utf-8")):
            print(f"{name}:{number}: longer than {COLUMNS} columns")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
