"""Counts test cases over several `bazel test` runs.

    report.py NAME:STATUS:EVENTS_JSON...

Each argument is one run: its name, bazel's exit status, and the file that
--build_event_json_file wrote. A GoogleTest case counts by name; a shell or
Python test counts by the last line `N passed, M failed` of its log, or else
as one case. Such a test skips by printing `SKIPPED: reason` and exiting with 0.

Prints failures, then tests that failed and passed when run once more, then
what was skipped and why, and last `N passed, M failed`.
Exits with 1 if anything failed or did not build.
"""

import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Tally:
    """Verdicts by case over all runs: one failure anywhere fails the case."""

    def __init__(self):
        self.verdicts = {}
        self.reasons = {}
        self.failures = []
        self.flaky = []

    def add(self, case, verdict, run, reason=""):
        known = self.verdicts.get(case)
        if verdict == FAILED:
            self.failures.append(f"{case} [{run}]{': ' + reason if reason else ''}")
        if known == FAILED or (known == PASSED and verdict == SKIPPED):
            return
        self.verdicts[case] = verdict
        self.reasons[case] = reason

    def count(self, verdict):
        return sum(1 for found in self.verdicts.values() if found == verdict)


def google_test_cases(xml):
    """Yields (name, verdict, reason) from a GoogleTest XML report."""
    for case in xml.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None:
            yield name, FAILED, ""
        elif skipped is not None:
            yield name, SKIPPED, last_line(skipped.get("message", ""))
        elif case.get("status") == "notrun":
            yield name, SKIPPED, "disabled in the source"
        else:
            yield name, PASSED, ""


def last_line(text):
    """The message of GTEST_SKIP, without the source line above it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def script_cases(log, passed):
    """Yields (name, verdict, reason) from a shell or Python test's log."""
    counts = re.findall(r"^(\d+) passed, (\d+) failed$", log, re.MULTILINE)
    skips = re.findall(r"^SKIPPED: (.+)$", log, re.MULTILINE)
    for index, reason in enumerate(skips):
        yield f"skip {index + 1}", SKIPPED, reason
    if counts:
        good, bad = (int(count) for count in counts[-1])
        if not passed:
            bad = max(bad, 1)
        for index in range(good):
            yield f"case {index + 1}", PASSED, ""
        for index in range(bad):
            yield f"failed case {index + 1}", FAILED, ""
    elif not passed:
        yield "the test", FAILED, ""
    elif not skips:
        yield "the test", PASSED, ""


def read(uri):
    """The text of a file:// URI; empty if it is not there."""
    try:
        path = urllib.parse.unquote(urllib.parse.urlparse(uri).path)
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def cases_of(result):
    """Yields (name, verdict, reason) for one testResult event."""
    passed = result["status"] in ("PASSED", "FLAKY")
    files = {output["name"]: output.get("uri", "") for output in result.get("testActionOutput", [])}
    try:
        xml = ElementTree.fromstring(read(files.get("test.xml", "")))
    except ElementTree.ParseError:
        xml = None
    # Bazel writes a report of its own for tests that wrote none: only
    # GoogleTest's has a time stamp.
    if xml is None or xml.get("timestamp") is None:
        yield from script_cases(read(files.get("test.log", "")), passed)
        return
    cases = list(google_test_cases(xml))
    yield from cases
    if not passed and all(verdict != FAILED for _, verdict, _ in cases):
        yield "the process", FAILED, result["status"].lower()


def add_run(tally, name, status, events_path):
    """Adds one bazel run to the tally."""
    last_attempts = {}
    failed_before = len(tally.failures)
    try:
        with open(events_path, encoding="utf-8") as file:
            events = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError):
        events = []
    for event in events:
        if "testResult" in event:
            key = event["id"]["testResult"]
            place = (key["label"], key.get("run", 1), key.get("shard", 1))
            if place in last_attempts and event["testResult"]["status"] == "PASSED":
                tally.flaky.append(f"{key['label']} [{name}]")
            last_attempts[place] = event["testResult"]
        elif "targetCompleted" in event["id"]:
            completed = event.get("completed", {})
            if not completed.get("success", False):
                label = event["id"]["targetCompleted"]["label"]
                tally.add(f"{label} (build)", FAILED, name)
    for (label, run, shard), result in last_attempts.items():
        for case, verdict, reason in cases_of(result):
            part = "" if (run, shard) == (1, 1) else f"#{run}.{shard}"
            tally.add(f"{label}{part} {case}", verdict, name, reason)
    if status != 0 and len(tally.failures) == failed_before:
        tally.add(f"bazel test ({name})", FAILED, name, f"exit status {status}")


def main(arguments):
    tally = Tally()
    for argument in arguments:
        name, status, path = argument.split(":", 2)
        add_run(tally, name, int(status), path)
    for failure in tally.failures:
        print(f"failed: {failure}")
    for label in tally.flaky:
        print(f"flaky: {label}: failed, and passed when run again")
    for case, verdict in sorted(tally.verdicts.items()):
        if verdict == SKIPPED:
            print(f"skipped: {case}: {tally.reasons[case]}")
    failed = tally.count(FAILED)
    print(f"{tally.count(PASSED)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
