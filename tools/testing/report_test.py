"""Tests of report.py on literal logs and reports."""

import contextlib
import io
import json
import os
import subprocess
import sys
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

    def result(self, label, status, xml, log="", attempt=1, shard=1):
        outputs = [
            {"name": "test.log", "uri": "file://" + self.file(log)},
            {"name": "test.xml", "uri": "file://" + self.file(xml)},
        ]
        return {
            "id": {"testResult": {"label": label, "run": 1, "shard": shard, "attempt": attempt}},
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
                "1 passed, 1 failed, 2 skipped",
            ],
        )

    def test_shards_are_one_target(self):
        xml = GOOGLE_XML.replace('<failure message="bad" type=""></failure>', "")
        sharded = [
            self.result("//a:b", "PASSED", xml),
            self.result("//a:b", "PASSED", xml.replace("Clock", "Watch"), shard=2),
        ]
        whole = self.result("//a:b", "PASSED", xml)
        _, lines = self.report(("plain", 0, [whole]), ("asan", 0, sharded))
        self.assertEqual(lines[-1], "4 passed, 0 failed, 4 skipped")

    def test_a_crash_counts_as_one_failure(self):
        status, lines = self.report(("plain", 3, [self.result("//a:b", "FAILED", BAZEL_XML)]))
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))

    def test_a_failure_after_the_last_case_is_not_lost(self):
        xml = GOOGLE_XML.replace('<failure message="bad" type=""></failure>', "")
        _, lines = self.report(("asan", 3, [self.result("//a:b", "FAILED", xml)]))
        self.assertEqual(lines[0], "failed: //a:b the process [asan]: failed")
        self.assertEqual(lines[-1], "2 passed, 1 failed, 2 skipped")

    def test_a_script_is_one_case(self):
        _, lines = self.report(
            (
                "plain",
                0,
                [
                    self.result("//a:one", "PASSED", BAZEL_XML, "fine\n"),
                    self.result("//a:none", "PASSED", BAZEL_XML, "SKIPPED: no shellcheck\n"),
                ],
            )
        )
        self.assertEqual(
            lines,
            [
                "skipped: //a:none said skip 1: no shellcheck",
                "1 passed, 0 failed, 1 skipped",
            ],
        )

    def log_of(self, body):
        """What unittest's own runner prints of a test with this body."""
        program = self.file(
            f"import sys, unittest\nsys.path[:] = {sys.path}\n"
            f"class T(unittest.TestCase):\n{body}\n"
            "unittest.main(verbosity=2)\n"
        )
        run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
        return run.stderr

    def unittest_report(self, status, body):
        log = self.log_of(body)
        return self.report(("plain", 0 if "\nOK" in log else 3, [self.python(status, log)]))

    def python(self, status, log):
        return self.result("//a:b", status, BAZEL_XML, log)

    def test_unittest_counts_by_method(self):
        status, lines = self.unittest_report(
            "PASSED",
            " def test_a(self): pass\n"
            " def test_b(self): pass\n"
            " @unittest.skip('no torch')\n"
            " def test_c(self): pass\n"
            " def test_d(self): self.skipTest('no data')",
        )
        self.assertEqual(status, 0)
        self.assertEqual(
            lines,
            [
                "skipped: //a:b skip 2: no data",
                "skipped: //a:b skip 1: no torch",
                "2 passed, 0 failed, 2 skipped",
            ],
        )

    def test_many_skips_for_one_reason_are_one_line(self):
        cases = "".join(
            f'<testcase name="T{i}" classname="Gpu"><skipped message="no GPU" /></testcase>'
            for i in range(4)
        )
        xml = f'<testsuites timestamp="2020-01-01T00:00:00.000">{cases}</testsuites>'
        _, lines = self.report(("plain", 0, [self.result("//a:b", "PASSED", xml)]))
        self.assertEqual(lines, ["skipped: //a:b 4 cases: no GPU", "0 passed, 0 failed, 4 skipped"])

    def test_a_unittest_that_skips_all_passes_nothing(self):
        _, lines = self.unittest_report(
            "PASSED",
            " @classmethod\n"
            " def setUpClass(cls): raise unittest.SkipTest('no GPU')\n"
            " def test_a(self): pass",
        )
        self.assertEqual(lines[-1], "0 passed, 0 failed, 1 skipped")

    def test_a_failing_unittest_is_named_once(self):
        status, lines = self.unittest_report(
            "FAILED",
            " def test_a(self): pass\n"
            " def test_b(self):\n"
            "  for i in range(2):\n"
            "   with self.subTest(i=i): self.fail()",
        )
        self.assertEqual(status, 1)
        self.assertEqual(
            lines,
            ["failed: //a:b test_b (__main__.T.test_b) [plain]", "1 passed, 1 failed"],
        )

    def test_a_test_in_which_nothing_ran_fails(self):
        status, lines = self.unittest_report("PASSED", " pass")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))
        empty = '<testsuites tests="0" timestamp="2020-01-01T00:00:00.000" name="AllTests" />'
        status, lines = self.report(("plain", 0, [self.result("//a:b", "PASSED", empty)]))
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))

    def test_a_failing_script_fails_whatever_it_printed(self):
        for log in ("Ran 5 tests in 0.1s\n\nOK\n", "SKIPPED: no data\n"):
            status, lines = self.report(("plain", 3, [self.python("FAILED", log)]))
            self.assertEqual(status, 1)
            self.assertEqual(lines[0], "failed: //a:b the test [plain]")

    def conformance(self, label, device, results):
        """Of a target that checks one combination for each of `results`."""
        cases = "".join(
            f'<testcase name="AgreesWithTheReference/{device}_{i}" status="run" result="completed"'
            f' classname="Device/ConformanceTest">{result}</testcase>'
            for i, result in enumerate(results)
        )
        xml = (
            '<testsuites timestamp="2020-01-01T00:00:00.000" name="AllTests">'
            f'<testsuite name="S">{cases}<testcase name="Goes" status="run" classname="NanTest" />'
            "</testsuite></testsuites>"
        )
        failed = any("failure" in result for result in results)
        return self.result(label, "FAILED" if failed else "PASSED", xml)

    def test_conformance_is_counted_apart(self):
        skipped = '<skipped message="conformance_test.cc:9&#x0A;no NVIDIA driver"></skipped>'
        cpu = self.conformance("//k:cpu", "cpu", ["", "", ""])
        gpu = self.conformance("//k:gpu", "gpu", [skipped, skipped])
        status, lines = self.report(("plain", 0, [cpu, gpu]))
        self.assertEqual(status, 0)
        self.assertEqual(
            lines,
            [
                "skipped: //k:gpu 2 combinations: no NVIDIA driver",
                "conformance: 3 combinations passed, 0 failed, 2 skipped",
                "3 passed, 0 failed, 1 skipped",
            ],
        )

    def test_one_combination_fails_its_suite(self):
        bad = self.conformance("//k:cpu", "cpu", ["", '<failure message="far off"></failure>'])
        status, lines = self.report(("plain", 3, [bad]))
        self.assertEqual(status, 1)
        self.assertEqual(
            lines,
            [
                "failed: //k:cpu Device/ConformanceTest.AgreesWithTheReference/cpu_1 [plain]",
                "conformance: 1 combinations passed, 1 failed",
                "1 passed, 1 failed",
            ],
        )

    def test_no_second_attempt_makes_up_for_a_crash(self):
        for log in ("WARNING: ThreadSanitizer: data race (pid=1)", "a.cc:7] Check failed: x"):
            status, lines = self.report(
                (
                    "plain",
                    0,
                    [
                        self.result("//a:b", "FAILED", BAZEL_XML, log, attempt=1),
                        self.result("//a:b", "PASSED", BAZEL_XML, attempt=2),
                    ],
                )
            )
            self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))
            self.assertIn("flaky: //a:b [plain]: failed, and passed when run again", lines)

    def test_no_second_attempt_makes_up_for_a_broken_promise(self):
        seen = self.log_of(
            " def test_a(self):\n"
            "  from tests.e2e import promises\n"
            "  promises.check_counted([3.0, 2.0], 3, samples=2)"
        )
        told = "BROKEN  the run came to its end: PromiseBroken: rows are from 2 to 3\n"
        cut = self.log_of(  # as at Bazel's time limit, before unittest tells what failed
            " def test_a(self):\n"
            "  import os\n"
            "  from tests.e2e import promises\n"
            "  try: promises.check(False, 'other bits')\n"
            "  except promises.PromiseBroken: os._exit(9)"
        )
        slow = self.log_of(" def test_a(self): self.fail('waited 30 s: PromiseBroken')")
        for log, failures in ((seen, 1), (told, 1), (cut, 1), (slow, 0)):
            attempts = [self.python("FAILED", log), self.python("PASSED", "")]
            status, lines = self.report(("plain", 0, attempts))
            self.assertEqual((status, lines[-1]), (failures, f"1 passed, {failures} failed"))
            self.assertIn("flaky: //a:b [plain]: failed, and passed when run again", lines)
        _, lines = self.report(
            ("plain", 0, [self.python("FAILED", seen), self.python("PASSED", "")])
        )
        self.assertEqual(
            lines[0],
            "failed: //a:b an earlier attempt [plain]: an attempt that passed does not make up "
            "for: PromiseBroken: samples were counted 2.0 to 3.0 times, not 3: 1 too few, "
            "0 too many",
        )

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
