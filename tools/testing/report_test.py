"""Tests of report.py on literal logs and reports."""

import contextlib
import io
import json
import os
import tempfile
import unittest

from tools.testing import report

GOOGLE_XML = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" timestamp="2020-01-01T00:00:00.000" name="AllTests">
  <testsuite name="Clock">
    <testcase name="Ticks" status="run" result="completed" classname="Clock" />
    <testcase name="Stops" status="run" result="completed" classname="Clock">
      <failure message="bad" type=""></failure>
    </testcase>
    <testcase name="Gpu" status="run" result="skipped" classname="Clock">
      <skipped message="clock_test.cc:7&#x0A;no GPU here"></skipped>
    </testcase>
    <testcase name="DISABLED_Old" status="notrun" result="suppressed" classname="Clock" />
  </testsuite>
</testsuites>"""

BAZEL_XML = """<testsuites><testsuite name="x/y" tests="1" failures="0" errors="0">
<testcase name="x/y" status="run" duration="1" time="1"></testcase>
</testsuite></testsuites>"""


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.files = 0

    def file(self, text):
        self.files += 1
        path = os.path.join(self.folder, str(self.files))
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def result(self, label, status, xml, log="", attempt=1):
        outputs = [
            {"name": "test.log", "uri": "file://" + self.file(log)},
            {"name": "test.xml", "uri": "file://" + self.file(xml)},
        ]
        return {
            "id": {"testResult": {"label": label, "run": 1, "shard": 1, "attempt": attempt}},
            "testResult": {"status": status, "testActionOutput": outputs},
        }

    def report(self, *runs):
        """(exit status, printed lines) for runs of (name, status, events)."""
        arguments = [
            f"{name}:{status}:" + self.file("\n".join(map(json.dumps, events)))
            for name, status, events in runs
        ]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = report.main(arguments)
        return status, printed.getvalue().splitlines()

    def test_counts_google_test_cases_by_name(self):
        status, lines = self.report(("plain", 3, [self.result("//a:clock", "FAILED", GOOGLE_XML)]))
        self.assertEqual(status, 1)
        self.assertEqual(
            lines,
            [
                "failed: //a:clock Clock.Stops [plain]",
                "skipped: //a:clock Clock.DISABLED_Old: disabled in the source",
                "skipped: //a:clock Clock.Gpu: no GPU here",
                "1 passed, 1 failed",
            ],
        )

    def test_a_crash_counts_as_one_failure(self):
        status, lines = self.report(("plain", 3, [self.result("//a:b", "FAILED", BAZEL_XML)]))
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))

    def test_a_failure_after_the_last_case_is_not_lost(self):
        xml = GOOGLE_XML.replace('<failure message="bad" type=""></failure>', "")
        _, lines = self.report(("asan", 3, [self.result("//a:b", "FAILED", xml)]))
        self.assertEqual(lines[0], "failed: //a:b the process [asan]: failed")
        self.assertEqual(lines[-1], "2 passed, 1 failed")

    def test_scripts_count_by_their_last_line_or_as_one(self):
        _, lines = self.report(
            (
                "plain",
                0,
                [
                    self.result("//a:many", "PASSED", BAZEL_XML, "x\n5 passed, 0 failed\n"),
                    self.result("//a:one", "PASSED", BAZEL_XML, "fine\n"),
                    self.result("//a:none", "PASSED", BAZEL_XML, "SKIPPED: no torch\n"),
                ],
            )
        )
        self.assertEqual(lines, ["skipped: //a:none skip 1: no torch", "6 passed, 0 failed"])

    def test_a_failing_script_fails_whatever_it_printed(self):
        status, lines = self.report(
            ("plain", 3, [self.result("//a:b", "FAILED", BAZEL_XML, "5 passed, 0 failed\n")])
        )
        self.assertEqual((status, lines[-1]), (1, "5 passed, 1 failed"))

    def test_a_case_counts_once_and_passes_only_if_it_does_everywhere(self):
        good = self.result("//a:b", "PASSED", BAZEL_XML)
        bad = self.result("//a:b", "FAILED", BAZEL_XML)
        other = self.result("//a:c", "PASSED", BAZEL_XML)
        status, lines = self.report(("plain", 0, [good, other]), ("asan", 3, [bad]))
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_the_last_attempt_decides(self):
        _, lines = self.report(
            (
                "plain",
                0,
                [
                    self.result("//a:b", "FAILED", BAZEL_XML, attempt=1),
                    self.result("//a:b", "PASSED", BAZEL_XML, attempt=2),
                ],
            )
        )
        self.assertEqual(
            lines, ["flaky: //a:b [plain]: failed, and passed when run again", "1 passed, 0 failed"]
        )

    def test_failing_twice_is_a_failure_and_not_flaky(self):
        status, lines = self.report(
            (
                "plain",
                3,
                [
                    self.result("//a:b", "FAILED", BAZEL_XML, attempt=1),
                    self.result("//a:b", "FAILED", BAZEL_XML, attempt=2),
                ],
            )
        )
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))
        self.assertFalse([line for line in lines if line.startswith("flaky")])

    def test_what_does_not_build_fails(self):
        event = {"id": {"targetCompleted": {"label": "//a:b"}}, "completed": {}}
        status, lines = self.report(("plain", 1, [event]))
        self.assertEqual(status, 1)
        self.assertEqual(lines, ["failed: //a:b (build) [plain]", "0 passed, 1 failed"])

    def test_an_unexplained_bazel_failure_fails(self):
        status, lines = self.report(("plain", 37, []))
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))


if __name__ == "__main__":
    unittest.main()
