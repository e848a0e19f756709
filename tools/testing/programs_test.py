"""Packages that tools/setup.sh installs bring every program that scripts, tests and documents call.

A developer's machine has more than a fresh one, so a program that no package brings is missing only
on the latter. Commands are read from shell scripts (by shfmt's syntax tree), from the lists that
Python hands to subprocess, and from the sh blocks of Markdown files. dpkg says what packages bring:
the essential ones, git and ca-certificates, which the README asks for, and setup's, with all their
dependencies. A program that a script looks for with `command -v` or shutil.which may be missing.
"""

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

SETUP = Path("tools/setup.sh")
# What the README asks a fresh machine for.
ASSUMED = ["git", "ca-certificates", "apt"]
FOLDERS = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/")
# Called with another command behind them.
WRAPPERS = {"exec", "env", "nice", "nohup", "time", "timeout", "sudo", "xargs", "chroot", "command"}
# Not of Debian's packages that setup installs, and why that is right.
ELSEWHERE = {
    "nvcc": "the CUDA toolkit, which is optional",
    "nvidia-smi": "NVIDIA's driver, which is optional",
    "compute-sanitizer": "the CUDA toolkit, which is optional",
    "ldconfig": "of libc-bin, which is essential",
    # An operator's own, in documents about clusters.
    "kubectl": "who runs a cluster has it",
    "docker": "who builds images has it",
    "podman": "who builds images has it",
    "buildah": "who builds images has it",
    "ssh": "who has machines has it",
    "scp": "who has machines has it",
    "tensorboard": "for who wants to look at event files",
    "starling": "of this repository",
    "starling-coordinator": "of this repository",
    "starling-ps": "of this repository",
    "starling-worker": "of this repository",
}


def run(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def nodes(tree):
    """Every object of a JSON value."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for child in tree:
            yield from nodes(child)


def literal(word):
    """The text of a shell word that has no expansion in it; else None."""
    texts = []
    for part in word.get("Parts", []):
        if part["Type"] not in ("Lit", "SglQuoted"):
            return None
        texts.append(part.get("Value", ""))
    return "".join(texts)


def is_option(wrapper, text):
    """Whether a word behind a wrapper is its own, and no command."""
    if text is None:  # an expansion: a duration, or a program
        return wrapper == "timeout"
    return text.startswith("-") or "=" in text or re.fullmatch(r"[0-9.]+[smh]?", text)


@functools.lru_cache(maxsize=None)
def parse(script):
    return json.loads(run("shfmt", "-ln", "bash", "--to-json", text=script))


def functions(script):
    return {
        node["Name"]["Value"] for node in nodes(parse(script)) if node.get("Type") == "FuncDecl"
    }


def shell_commands(script):
    """What a script calls but its own functions; CalledProcessError: shfmt cannot parse it."""
    tree = parse(script)
    own = {node["Name"]["Value"] for node in nodes(tree) if node.get("Type") == "FuncDecl"}
    optional, called = set(), set()
    for node in nodes(tree):
        if node.get("Type") != "CallExpr":
            continue
        words = [literal(word) for word in node.get("Args", [])]
        while words and words[0] in WRAPPERS:
            if words[0] == "command" and words[1:2] == ["-v"]:
                optional.update(word for word in words[2:] if word)
                words = []
                break
            wrapper, *words = words
            while words and is_option(wrapper, words[0]):
                words = words[1:]
        if words and words[0]:
            called.add(words[0])
    return called - own - optional


def python_commands(source):
    """The programs in lists that subprocess gets, less those that shutil.which looks for."""
    called, optional = set(), set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        first = node.args[0]
        if name in ("run", "Popen", "check_output", "check_call", "call") and isinstance(
            first, ast.List
        ):
            first = first.elts[0] if first.elts else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                called.add(first.value)
        elif name == "which" and isinstance(first, ast.Constant):
            optional.add(first.value)
    return called - optional


def document_commands(text):
    called = set()
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        try:
            called |= shell_commands(block)
        except subprocess.CalledProcessError:  # a sketch, with <placeholders>: line by line
            for line in block.splitlines():
                try:
                    called |= shell_commands(line)
                except subprocess.CalledProcessError:
                    continue
    return called


def setup_packages():
    """What the arrays NAME_packages=(...) of setup.sh name."""
    found = []
    for array in re.findall(
        r"^\w+_packages=\((.*?)\)", SETUP.read_text(), re.DOTALL | re.MULTILINE
    ):
        found += array.split()
    # Unpacked, not installed: `unpack FOLDER PACKAGE PROGRAM...`.
    return found


def unpacked_programs():
    programs = set()
    for words in re.findall(r"^\s*unpack \S+ (\S+ .*)$", SETUP.read_text(), re.MULTILINE):
        programs.update(words.split()[1:])
    return programs


def with_dependencies(packages):
    """The packages, and those that they depend on, of those that are installed here."""
    depends, provides = {}, {}
    fields = (
        "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\t${Essential}\t${db:Status-Status}\n"
    )
    essential = []
    for row in run("dpkg-query", "-W", f"-f={fields}").splitlines():
        name, provided, needs, is_essential, status = row.split("\t")
        if status != "installed":
            continue
        names = [re.sub(r"[ :(].*", "", need.strip()) for need in re.split(r"[,|]", needs)]
        depends[name] = [need for need in names if need]
        for alias in provided.split(","):
            provides.setdefault(re.sub(r"[ (].*", "", alias.strip()), []).append(name)
        if is_essential == "yes":
            essential.append(name)
    closed, waiting = set(), list(packages) + essential
    while waiting:
        name = waiting.pop()
        for real in [name] if name in depends else provides.get(name, []):
            if real not in closed:
                closed.add(real)
                waiting += depends[real]
    return closed


def programs_of(packages):
    files = run("dpkg", "--listfiles", *sorted(packages)).splitlines()
    programs = {os.path.basename(file) for file in files if file.startswith(FOLDERS)}
    # awk, nc and others: a link that packages share.
    for alternative in Path("/var/lib/dpkg/alternatives").glob("*"):
        lines = alternative.read_text(errors="replace").splitlines()
        if any(os.path.basename(line) in programs for line in lines if line.startswith(FOLDERS)):
            programs.add(alternative.name)
            programs.update(os.path.basename(line) for line in lines if line.startswith(FOLDERS))
    return programs


NEEDS_SHFMT = unittest.skipUnless(
    shutil.which("shfmt"), "shfmt is not installed (tools/setup.sh --tests)"
)


class ProgramsTest(unittest.TestCase):
    @unittest.skipUnless(shutil.which("dpkg-query"), "this is no Debian")
    @NEEDS_SHFMT
    def test_every_program_has_a_package(self):
        builtins = set(run("bash", "-c", "compgen -b; compgen -k").split())
        known = builtins | set(ELSEWHERE) | unpacked_programs()
        known |= programs_of(with_dependencies(setup_packages() + ASSUMED))
        scripts = [name for name in sys.argv[1:] if not name.endswith((".py", ".md"))]
        for name in scripts:  # some are sourced by others
            known |= functions(Path(name).read_text(encoding="utf-8"))
        missing, read = [], 0
        for name in sys.argv[1:]:
            path = Path(name)
            text = path.read_text(encoding="utf-8", errors="replace")
            if path.suffix == ".py":
                called = python_commands(text)
            elif path.suffix == ".md":
                called = document_commands(text)
            else:
                called = shell_commands(text)
            read += len(called)
            missing += [
                f"{name}: {program}"
                for program in sorted(called)
                if "/" not in program and program not in known
            ]
        self.assertGreater(read, 100, "expected to find the programs that scripts call")
        self.assertEqual(
            missing,
            [],
            "\nNo package of tools/setup.sh brings these; add it there, or to "
            "ELSEWHERE with a reason:\n" + "\n".join(missing),
        )

    @NEEDS_SHFMT
    def test_reads_commands(self):
        script = (
            'a | b && if c; then exec env X=1 d; fi; e() { f; }; e; x=$(g "$(h)")\n'
            "command -v i; i\ncat <<EOF\nj k\nEOF\n"
            "'l' m; timeout 5s n; \"$o\" p; xargs -r q"
        )
        self.assertEqual(shell_commands(script), set("abcdfghlnq") | {"cat"})
        source = (
            'subprocess.run(["a", "b"]); Popen(["c"]); run([x, "d"])\n'
            'shutil.which("e"); call(["e"])'
        )
        self.assertEqual(python_commands(source), {"a", "c"})
        self.assertEqual(
            document_commands("```sh\na b\n```\n```\nc\n```\n```sh\nd <NAME>\ne\n```\n"), {"a", "e"}
        )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
