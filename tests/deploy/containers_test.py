"""deploy/containers: which packages the images need, and what the Containerfile promises.
Standard library only."""

import re
import subprocess
import unittest
from pathlib import Path

from tests.e2e.cluster import binary

CONTAINERS = Path(__file__).parents[2] / "deploy" / "containers"
IMAGES = {
    "server": ("server/coordinator/starling-coordinator", "server/shard/starling-ps"),
    "worker": ("worker/starling-worker", "tools/cli/starling"),
}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def closure(packages):
    """The packages and all their dependencies, as far as they are installed."""
    depends = {}
    for line in run(
        "dpkg-query", "-W", "-f", "${Package}\t${Pre-Depends}, ${Depends}\n"
    ).stdout.splitlines():
        name, text = line.split("\t", 1)
        depends[name] = re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", text)
    found, todo = set(), list(packages)
    while todo:
        package = todo.pop()
        if package not in found:
            found.add(package)
            todo.extend(depends.get(package, []))
    return found


def owners(paths):
    """Library -> packages. dpkg lists some files with their /usr prefix, others without."""
    names = [name for path in paths for name in {path, "/usr" + path, path.removeprefix("/usr")}]
    found = {}
    for line in run("dpkg-query", "--search", *names).stdout.splitlines():
        packages, path = line.split(": ", 1)
        owning = {package.split(":")[0] for package in packages.split(", ")}
        found.setdefault(path.removeprefix("/usr"), set()).update(owning)
    return {path: found.get(path.removeprefix("/usr"), set()) for path in paths}


class Packages(unittest.TestCase):
    def test_they_bring_every_library(self):
        for image, labels in IMAGES.items():
            programs = [binary(label) for label in labels]
            result = run(CONTAINERS / "packages.sh", *programs)
            self.assertEqual(result.returncode, 0, result.stderr)
            packages = result.stdout.split()
            self.assertEqual(packages, sorted(set(packages)))
            self.assertIn("libc6", packages)
            self.assertEqual([p for p in packages if p.endswith("-dev")], [])
            brought = closure(packages)
            libraries = {
                path
                for program in programs
                for path in re.findall(r"=> (/\S+)", run("ldd", program).stdout)
            }
            self.assertGreater(len(libraries), 10)
            for path, owning in owners(libraries).items():
                self.assertTrue(owning & brought, f"{image}: {path} of {owning}")

    def test_only_the_worker_computes(self):
        server = run(CONTAINERS / "packages.sh", *map(binary, IMAGES["server"])).stdout.split()
        worker = run(CONTAINERS / "packages.sh", *map(binary, IMAGES["worker"])).stdout.split()
        self.assertIn("libdnnl2", worker)
        self.assertNotIn("libdnnl2", server)
        self.assertIn("libsqlite3-0", server)

    def test_mistakes(self):
        self.assertEqual(run(CONTAINERS / "packages.sh").returncode, 2)
        self.assertEqual(run(CONTAINERS / "build.sh").returncode, 2)
        self.assertEqual(run(CONTAINERS / "runtime.sh", "/nonexistent").returncode, 2)


class Containerfile(unittest.TestCase):
    text = (CONTAINERS / "Containerfile").read_text()

    def test_the_base_is_pinned_and_the_builds(self):
        self.assertRegex(self.text, r"(?m)^ARG BASE=\S+/debian:bookworm-\d{8}-slim$")
        self.assertEqual(set(re.findall(r"(?m)^FROM (\S+)", self.text)), {"${BASE}"})

    def test_one_stage_per_image_without_root_or_secrets(self):
        stages = dict(re.findall(r"(?ms)^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", self.text))
        self.assertEqual(set(stages), {"build", *IMAGES})
        for image in IMAGES:
            self.assertRegex(stages[image], r"(?m)^USER 10001:10001$")
            self.assertIn(f"/containers/runtime.sh /out/{image}\n", stages[image])
        self.assertNotRegex(self.text, r"(?i)\b(ENV|password|token)\b")
        self.assertIn("/src/deploy/containers/build.sh /out\n", stages["build"])

    def test_scripts_can_be_run(self):
        for name in ("build.sh", "packages.sh", "runtime.sh"):
            self.assertTrue((CONTAINERS / name).stat().st_mode & 0o100, name)


if __name__ == "__main__":
    unittest.main()
