"""Tests of changed.py: what a changed file is to Bazel, and what git calls changed."""

import os
import subprocess
import tempfile
import unittest

from tools.testing import changed


class RootsTest(unittest.TestCase):
    def roots(self, *files, tree=()):
        tree = {"BUILD.bazel", "a/BUILD.bazel", "a/b/c/BUILD.bazel", *tree}
        return changed.roots(files, tree.__contains__)

    def test_a_file_belongs_to_the_nearest_package(self):
        tree = ("a/x.cc", "a/b/y.cc", "a/b/c/z.cc", "README.md", "new/w.cc")
        self.assertEqual(
            self.roots(*tree, tree=tree),
            ["//:README.md", "//:new/w.cc", "//a/b/c:z.cc", "//a:b/y.cc", "//a:x.cc"],
        )

    def test_a_package_file_or_one_that_is_gone_is_the_whole_package(self):
        self.assertEqual(self.roots("a/BUILD.bazel"), ["//a:all"])
        self.assertEqual(self.roots("a/b/gone.cc"), ["//a:all"])
        self.assertEqual(self.roots("a/b/gone/BUILD.bazel"), ["//a:all"])

    def test_how_things_are_built_is_everything(self):
        for file in ("WORKSPACE", ".bazelrc", "tools/bazel/defs.bzl"):
            self.assertEqual(self.roots("a/x.cc", file, tree=("a/x.cc", file)), ["//..."])


class ChangedFilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit("first")

    def git(self, *words):
        subprocess.run(
            ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words], check=True
        )

    def write(self, name):
        with open(name, "a", encoding="utf-8") as file:
            file.write("more\n")

    def commit(self, name):
        self.write(name)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", name)

    def test_what_is_committed_what_is_not_and_what_is_new(self):
        self.git("switch", "--quiet", "--create", "branch")
        self.commit("second")
        self.write("first")
        self.write("third")
        self.assertEqual(
            changed.changed_files(changed.default_base()), ["first", "second", "third"]
        )
        self.assertEqual(changed.changed_files("HEAD"), ["first", "third"])

    def test_on_main_the_last_commit_or_what_is_not_committed(self):
        self.commit("second")
        self.assertEqual(changed.changed_files(changed.default_base()), ["second"])
        self.write("first")
        self.assertEqual(changed.changed_files(changed.default_base()), ["first"])


if __name__ == "__main__":
    unittest.main()
