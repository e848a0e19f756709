"""tools/accept.sh in a small repository of its own: verdicts, and when they count."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path("tools/accept.sh").resolve()


class AcceptTest(unittest.TestCase):
    def setUp(self):
        self.place = Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.root = self.place / "repository"
        self.suite = self.root / "tools/accept/suite"
        self.suite.mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "tools/accept.sh")
        (self.suite / "lines").write_text("line | what it measures | a bound\n")
        self.runs = self.place / "runs"
        self.line('echo run >>"$RUNS"; echo "figure: 7"')
        self.git("init", "--quiet")
        self.commit()

    def tearDown(self):
        shutil.rmtree(self.place)

    def environment(self):
        return dict(
            os.environ,
            HOME=str(self.place),
            XDG_CACHE_HOME=str(self.place / "cache"),
            RUNS=str(self.runs),
            GIT_CONFIG_NOSYSTEM="1",
        )

    def git(self, *words):
        subprocess.run(
            ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words],
            cwd=self.root,
            env=self.environment(),
            check=True,
        )

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "test")

    def line(self, body, name="line"):
        script = self.suite / f"{name}.sh"
        script.write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{body}\n")
        script.chmod(0o755)

    def accept(self, *words):
        done = subprocess.run(
            ["tools/accept.sh", "suite", *words],
            cwd=self.root,
            timeout=60,
            env=self.environment(),
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    def times_run(self):
        return self.runs.read_text().count("run") if self.runs.exists() else 0

    def test_keeps_the_verdict_of_a_clean_commit(self):
        status, output = self.accept()
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"line +7 +a bound +holds\n")
        status, output = self.accept()
        self.assertEqual(status, 0, output)
        self.assertIn("holds (kept)", output)
        self.assertEqual(self.times_run(), 1)
        self.accept("--again")
        self.assertEqual(self.times_run(), 2)

    def test_counts_for_no_other_commit(self):
        self.accept()
        self.commit()
        _, output = self.accept()
        self.assertNotIn("kept", output)
        self.assertEqual(self.times_run(), 2)

    def test_counts_for_no_changed_tree(self):
        self.accept()
        (self.root / "new").write_text("")
        _, output = self.accept()
        self.assertNotIn("kept", output)
        self.accept()
        self.assertEqual(self.times_run(), 3)

    def test_a_tree_that_changes_meanwhile_is_a_miss_and_nothing_is_kept(self):
        self.line('touch new; echo run >>"$RUNS"; echo "figure: 7"')
        self.commit()
        status, output = self.accept()
        self.assertEqual(status, 1, output)
        self.assertIn("MISS (changed)", output)
        (self.root / "new").unlink()
        _, output = self.accept()
        self.assertNotIn("kept", output)
        self.assertEqual(self.times_run(), 2)

    def test_no_figure_and_a_bad_status_are_misses(self):
        self.line("true")
        self.assertEqual(self.accept()[0], 1)
        self.line('echo "figure: 9"; exit 3')
        status, output = self.accept()
        self.assertEqual(status, 1)
        self.assertIn("MISS", output)

    def test_what_could_not_run_is_said(self):
        self.line('echo "figure: no such hardware"; exit 75')
        status, output = self.accept()
        self.assertEqual(status, 0, output)
        self.assertIn("NOT RUN on this machine: line", output)

    def test_a_bundle_is_judged_without_git_by_its_lines_alone(self):
        (self.suite / "lines").write_text("line | a | b\nother | c | d\n")
        (self.suite / "bundle_lines").write_text("other\n")
        self.line('echo "figure: $("$STARLING_BUNDLE/run_gpu.sh")"', name="other")
        bundle = self.place / "bundle"
        bundle.mkdir()
        (bundle / "COMMIT").write_text("0123\n")
        (bundle / "run_gpu.sh").write_text("#!/bin/sh\necho of the bundle\n")
        (bundle / "run_gpu.sh").chmod(0o755)
        shutil.rmtree(self.root / ".git")
        status, output = self.accept("--bundle", str(bundle))
        self.assertEqual(status, 0, output)
        self.assertIn("commit 0123", output)
        self.assertRegex(output, r"other +of the bundle +d +holds")
        self.assertEqual(self.times_run(), 0)

    def test_a_folder_that_is_no_bundle_is_a_usage_error(self):
        (self.suite / "bundle_lines").write_text("line\n")
        status, output = self.accept("--bundle", str(self.place))
        self.assertEqual(status, 2, output)
        self.assertIn("run_gpu.sh", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
