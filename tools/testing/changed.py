"""Which tests a change affects.

    changed.py [BASE]

Compares the working tree, untracked files included, with the commit BASE: by default, with the
commit where the branch left main; on main itself, with HEAD, or HEAD~ if nothing differs from HEAD.
Prints a line `GROUP //TARGET` for each test that depends on a changed file, by `bazel query`:

    asan         C++ tests that run under AddressSanitizer
    tsan         those of them that run under ThreadSanitizer, too
    plain        C++ tests that run without sanitizers, and scripts that start no program of ours
    end-to-end   scripts that start our programs

What is compared goes to stderr. A change of how things are built affects every test.
"""

import os
import re
import subprocess
import sys

# Changes of these affect what no query shows.
BUILD_RULES = re.compile(r"(^|/)(WORKSPACE|\.bazelrc|\.bazelignore|user\.bazelrc)$|\.bzl$")
PACKAGE_FILE = "BUILD.bazel"


def run(*command, may_fail=False):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=not may_fail)
    return done.stdout.strip() if done.returncode == 0 else ""


def default_base():
    head = run("git", "rev-parse", "HEAD")
    for main in ("origin/HEAD", "origin/main", "main"):
        base = run("git", "merge-base", "HEAD", main, may_fail=True)
        if base and base != head:
            return base
    return "HEAD" if run("git", "status", "--porcelain") else "HEAD~"


def changed_files(base):
    files = run("git", "diff", "--name-only", "--no-renames", base, "--").splitlines()
    files += run("git", "ls-files", "--others", "--exclude-standard").splitlines()
    return sorted(set(files))


def roots(files, exists):
    """Bazel patterns for what changed; `exists(path)` says whether the tree has a file."""
    patterns = set()
    for file in files:
        if BUILD_RULES.search(file):
            return ["//..."]
        folder, name = os.path.split(file)
        while folder and not exists(os.path.join(folder, PACKAGE_FILE)):
            folder = os.path.dirname(folder)
        # What a package file says, or a file that is gone, may be behind any target of the package.
        whole = name == PACKAGE_FILE or not exists(file)
        patterns.add(f"//{folder}:" + ("all" if whole else os.path.relpath(file, folder or ".")))
    return sorted(patterns)


def query(expression):
    """The labels; files that are no target of any package (status 3) affect nothing."""
    done = subprocess.run(
        ["bazel", "query", "--keep_going", "--noshow_progress", "--ui_event_filters=-error,-info"]
        + ["--order_output=no", expression],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 3):
        raise RuntimeError(f"bazel query '{expression[:300]}': {done.stderr}")
    return set(done.stdout.split())


def groups(patterns):
    """{group: labels} of the tests that depend on the patterns."""
    tests = query(f'kind(".*_test rule", rdeps(//..., set({" ".join(patterns)})))')
    if not tests:
        return {}
    listed = f'set({" ".join(sorted(tests))})'
    native = query(f'kind("cc_test rule", {listed})')
    unsanitized = query(f'attr(tags, "\\bno-sanitize\\b", {listed})')
    optimized = query(f'attr(tags, "\\bplain\\b", {listed})')
    threads = query(f'attr(tags, "\\btsan\\b", {listed})')
    programs = query(f'rdeps({listed}, kind("cc_binary rule", deps({listed}) intersect //...))')
    end_to_end = (tests - native) & programs
    return {
        "asan": native - unsanitized,
        "tsan": native & threads,
        "plain": (native & (unsanitized | optimized)) | (tests - native - end_to_end),
        "end-to-end": end_to_end,
    }


def main(arguments):
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    base = arguments[0] if arguments else default_base()
    files = changed_files(base)
    found = groups(roots(files, os.path.exists)) if files else {}
    count = len(set().union(*found.values()))
    print(
        f"{len(files)} files differ from {base[:12]}, {count} tests depend on them", file=sys.stderr
    )
    for group, labels in found.items():
        for label in sorted(labels):
            print(group, label)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
