"""Counts test cases over several `bazel test` runs.

    report.py NAME:STATUS:EVENTS_JSON...

Each argument is one run: its name, bazel's exit status, and the file that --build_event_json_file
wrote. Prints failures, flaky tests, what was skipped and why, the conformance suites, and last

    N passed, M failed[, K skipped]

What the closing line counts: test cases, each once, whatever the number of runs. A case passes only
if it passes in every run in which it is not skipped, and is skipped only if no run could run it.

* GoogleTest: a case is a TEST, a TEST_P with each parameter; it skips by GTEST_SKIP() << reason.
* unittest: a case is a test method; it skips by skipTest or skipIf. unittest prints the reason only
  with verbosity=2, so tests that can skip ask for that.
* Any other script is one case. It skips by a line `SKIPPED: reason` and exit status 0; several such
  lines are several skipped cases.
* Conformance: the suites in CONFORMANCE check each combination of operator, type, layout and
  device, thousands of them. They are counted in a line of their own, `conformance: C combinations
  passed, ...`; the closing line counts each such suite of a target as one case, failed if any
  combination failed.

A test in which no case ran and none was skipped fails, as does one that did not build. A test that
failed and then passed is flaky: it counts as passed and is named, unless a failed attempt shows a
crash, a sanitizer's finding or a broken promise. No second attempt makes up for those.
Exits with 1 if anything failed.
"""

import collections
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
CONFORMANCE = re.compile(r"^(\w+/(?:ConformanceTest|GradientTest))\.")
# What a process prints that crashed, failed a check of its own, or was caught by a sanitizer; and a
# test that found a broken promise (tests/e2e/promises.py).
UNFORGIVEN = re.compile(
    r"(AddressSanitizer|ThreadSanitizer|LeakSanitizer)\b|: runtime error: |Check failed|"
    r"\bSIG(SEGV|ABRT|BUS|ILL|FPE)\b|Segmentation fault|Aborted \(core dumped\)|"
    r"\bPromiseBroken: .{0,200}"
)


class Tally:
    """Verdicts by case over all runs: one failure anywhere fails the case."""

    def __init__(self):
        self.verdicts = {}
        self.reasons = {}
        self.failures = []
        self.flaky = []

    def add(self, target, name, verdict, run, reason=""):
        case = (target, name)
        known = self.verdicts.get(case)
        if verdict == FAILED:
            self.failures.append(f"{target} {name} [{run}]{': ' + reason if reason else ''}")
        if known == FAILED or (known == PASSED and verdict == SKIPPED):
            return
        self.verdicts[case] = verdict
        self.reasons[case] = reason

    def split(self):
        """(verdicts of cases, each conformance suite being one; those of combinations)."""
        cases, combinations = {}, {}
        suites = collections.defaultdict(set)
        for (target, name), verdict in self.verdicts.items():
            suite = CONFORMANCE.match(name)
            if suite:
                combinations[target, name] = verdict
                suites[target, suite.group(1)].add(verdict)
            else:
                cases[target, name] = verdict
        for suite, verdicts in suites.items():
            cases[suite] = next(v for v in (FAILED, PASSED, SKIPPED) if v in verdicts)
        return cases, combinations

    def skip_lines(self):
        """One line for each target and reason."""
        names, combinations = collections.defaultdict(list), collections.Counter()
        for (target, name), verdict in self.verdicts.items():
            if verdict == SKIPPED:
                place = target, self.reasons[target, name]
                if CONFORMANCE.match(name):
                    combinations[place] += 1
                else:
                    names[place].append(name)
        for target, reason in sorted(names.keys() | combinations.keys()):
            found = names[target, reason]
            what = f"{len(found)} cases" if len(found) > 3 else ", ".join(sorted(found))
            if combinations[target, reason]:
                what += f"{', ' if what else ''}{combinations[target, reason]} combinations"
            yield f"skipped: {target} {what}: {reason}"


def count(verdicts, what=""):
    """`N what passed, M failed`, and `, K skipped` where there are any."""
    counts = collections.Counter(verdicts.values())
    skipped = f", {counts[SKIPPED]} skipped" if counts[SKIPPED] else ""
    return f"{counts[PASSED]}{what} passed, {counts[FAILED]} failed{skipped}"


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


def unittest_cases(log):
    """Yields (name, verdict, reason) from the output of unittest's runner, of all runs in the log.

    The log names tests that failed. Of the others it has the number, and with verbosity=2 why some
    were skipped.
    """
    ran = skipped = 0
    summary = r"^Ran (\d+) tests? in [\d.]+s$.*?^(?:OK|FAILED)(?: \((.*)\))?$"
    for number, details in re.findall(summary, log, re.MULTILINE | re.DOTALL):
        ran += int(number)
        skipped += sum(map(int, re.findall(r"skipped=(\d+)", details)))
    # A test that fails in several subTests is there several times; setUpClass is no test.
    failed = set(
        re.findall(r"^(?:FAIL|ERROR|UNEXPECTED SUCCESS): (\w+ \(\S+\))", log, re.MULTILINE)
    )
    for test in sorted(failed):
        yield test, FAILED, ""
    reasons = [text for _, text in re.findall(r"skipped (['\"])(.*)\1$", log, re.MULTILINE)]
    for index in range(skipped):
        reason = reasons[index] if index < len(reasons) else "no reason given"
        yield f"skip {index + 1}", SKIPPED, reason
    tests_failed = sum(not test.startswith(("setUp", "tearDown")) for test in failed)
    for index in range(ran - skipped - tests_failed):
        yield f"case {index + 1}", PASSED, ""


def script_cases(log, passed):
    """Yields (name, verdict, reason) from a shell or Python test's log."""
    cases = list(unittest_cases(log))
    said = re.findall(r"^SKIPPED: (.+)$", log, re.MULTILINE)
    cases += [(f"said skip {index + 1}", SKIPPED, reason) for index, reason in enumerate(said)]
    yield from cases
    if not passed and all(verdict != FAILED for _, verdict, _ in cases):
        yield "the test", FAILED, ""
    elif passed and not cases:
        if re.search(r"^Ran 0 tests in ", log, re.MULTILINE):
            yield "the test", FAILED, "no case ran"
        else:
            yield "the test", PASSED, ""


def read(uri):
    """The text of a file:// URI; empty if it is not there."""
    try:
        path = urllib.parse.unquote(urllib.parse.urlparse(uri).path)
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def outputs_of(result):
    """URIs of a testResult event's files by name: test.log, test.xml."""
    return {output["name"]: output.get("uri", "") for output in result.get("testActionOutput", [])}


def cases_of(result):
    """Yields (name, verdict, reason) for one testResult event."""
    passed = result["status"] in ("PASSED", "FLAKY")
    files = outputs_of(result)
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
    elif not cases:
        yield "the process", FAILED, "no case ran"


def add_run(tally, name, status, events_path):
    """Adds one bazel run to the tally."""
    attempts = collections.defaultdict(list)
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
            attempts[place].append(event["testResult"])
        elif "targetCompleted" in event["id"]:
            completed = event.get("completed", {})
            if not completed.get("success", False):
                label = event["id"]["targetCompleted"]["label"]
                tally.add(label, "(build)", FAILED, name)
    for (label, run, _), results in attempts.items():  # a case runs in one shard
        part = "" if run == 1 else f"#{run}"
        *failed, last = results
        if failed and last["status"] == "PASSED":
            tally.flaky.append(f"{label} [{name}]")
            for result in failed:
                found = UNFORGIVEN.search(read(outputs_of(result).get("test.log", "")))
                if found:
                    why = f"an attempt that passed does not make up for: {found.group().strip()}"
                    tally.add(label + part, "an earlier attempt", FAILED, name, why)
        for case, verdict, reason in cases_of(last):
            tally.add(label + part, case, verdict, name, reason)
    if status != 0 and len(tally.failures) == failed_before:
        tally.add("bazel test", f"({name})", FAILED, name, f"exit status {status}")


def main(arguments):
    tally = Tally()
    for argument in arguments:
        name, status, path = argument.split(":", 2)
        add_run(tally, name, int(status), path)
    for failure in tally.failures:
        print(f"failed: {failure}")
    for label in tally.flaky:
        print(f"flaky: {label}: failed, and passed when run again")
    for line in tally.skip_lines():
        print(line)
    cases, combinations = tally.split()
    if combinations:
        print("conformance: " + count(combinations, " combinations"))
    print(count(cases))
    return 1 if FAILED in cases.values() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
