"""Judges cases.txt: every row has evidence, and every test that it names passes.

    cases.py            checks the rows and runs the tests on this tree
    cases.py --rows     checks the rows only
    cases.py --prove    runs today's tests on the commit before the mends, where each must fail

Prints one line per row, and last `figure: ...`. Exit status 0: all hold.
"""

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
from tools.testing import report  # noqa: E402  (found by the line above)

CASES = Path(__file__).with_name("cases.txt")
BEFORE = "3c03bd8"  # the newest commit without any of the mends
NOT_BUILT = "there is no such target, or it does not build"
Test = collections.namedtuple("Test", "target name")
Row = collections.namedtuple("Row", "id what kind text tests")


def read_rows(text):
    """The rows; raises ValueError with the line number if one cannot be read."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"line {number}: expected `id | what | evidence`, got: {line}")
        evidence = parts[2]
        tests = []
        if evidence.startswith("test "):
            kind = "test"
            for item in evidence[len("test ") :].split(","):
                words = item.split()
                if len(words) != 2 or not words[0].startswith("//"):
                    raise ValueError(
                        f"line {number}: expected `//TARGET NAME`, got: {item.strip()}"
                    )
                tests.append(Test(*words))
        elif match := re.match(r"(not followed|later): (.{15,})", evidence):
            kind = match.group(1)
        elif evidence == "open":
            kind = "open"
        else:
            raise ValueError(
                f"line {number}: expected test, not followed, later or open, got: {evidence}"
            )
        rows.append(Row(parts[0], parts[1], kind, evidence, tests))
    twice = [
        name for name, count in collections.Counter(row.id for row in rows).items() if count > 1
    ]
    if twice:
        raise ValueError(f"more than one row for {', '.join(twice)}")
    return rows


def bazel(root, *words, **options):
    return subprocess.run(["bazel", *words], cwd=root, text=True, **options)


Result = collections.namedtuple("Result", "passed cases log")


def run_targets(root, targets):
    """Builds and runs the targets; {target: Result}, without those that are missing or do not
    build."""
    known = bazel(
        root,
        "query",
        "--keep_going",
        "--noshow_progress",
        "set(" + " ".join(sorted(targets)) + ")",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ).stdout.split()
    if not known:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.json"
        bazel(
            root,
            "test",
            "--keep_going",
            "--test_summary=none",
            "--show_progress_rate_limit=60",
            f"--build_event_json_file={events}",
            *known,
            stdout=sys.stderr,
            stderr=sys.stderr,
        )
        results = {}
        for line in events.read_text().splitlines():
            event = json.loads(line)
            if "testResult" not in event:
                continue
            found = event["testResult"]
            target = event["id"]["testResult"]["label"]
            logs = {
                output["name"]: output.get("uri", "")
                for output in found.get("testActionOutput", [])
            }
            cases = {name: state == report.PASSED for name, state, _ in report.cases_of(found)}
            before = results.get(target, Result(True, {}, ""))  # another shard of it
            results[target] = Result(
                before.passed and found["status"] == "PASSED",
                {**before.cases, **cases},
                before.log + report.read(logs.get("test.log", "")),
            )
    return results


def in_log(log, name):
    """The verdict on Class.test_name in unittest's log (verbosity 2): "ok", "FAIL", ...; None:
    absent."""
    group, _, test = name.partition(".")
    match = re.search(
        rf"^{re.escape(test)} \(\S*\b{re.escape(group)}(?:\.{re.escape(test)})?\).*?"
        r"\.\.\. .*?(ok|FAIL|ERROR|skipped)",
        log,
        re.MULTILINE | re.DOTALL,
    )
    return match.group(1) if match else None


def in_source(root, target, name):
    """Whether the test's source contains Class.test_name, for tests whose log does not name
    them."""
    package, _, target_name = target[2:].partition(":")
    source = root / package / f"{target_name}.py"
    group, _, test = name.partition(".")
    text = source.read_text() if source.exists() else ""
    return f"class {group}(" in text and f"def {test}(" in text


def verdict(root, results, test):
    """ "passed", or what is wrong."""
    result = results.get(test.target)
    if result is None:
        return NOT_BUILT
    if test.name in result.cases:
        return "passed" if result.cases[test.name] else "failed"
    if test.name == "-":
        return "passed" if result.passed else "failed"
    said = in_log(result.log, test.name)
    if said is not None:
        return "passed" if said == "ok" else "failed"
    if not in_source(root, test.target, test.name):
        return "there is no such case"
    return "passed" if result.passed else "failed"


def judge(root, rows, wanted):
    """The number of bad rows, and the count of each verdict."""
    verdicts = collections.Counter()
    results = run_targets(root, {test.target for row in rows for test in row.tests})
    bad = 0
    for row in rows:
        found = [(test, verdict(root, results, test)) for test in row.tests]
        good = row.kind != "open" and all(wanted(text) for _, text in found)
        bad += not good
        verdicts.update(text for _, text in found)
        print(
            f"{'   ' if good else 'BAD'} {row.id:5} {row.what[:70]:70} "
            f"{row.text if not found else ''}"
        )
        for test, text in found:
            print(f"          {'' if wanted(text) else 'BAD '}{test.target} {test.name}: {text}")
    return bad, verdicts


def summary(rows):
    kinds = collections.Counter(row.kind for row in rows)
    return (
        f"{len(rows)} cases: {kinds['test']} with tests, {kinds['later']} of later issues, "
        f"{kinds['not followed']} not followed, {kinds['open']} open"
    )


def check_out_before(place):
    """The tree before the mends, with today's tests in it."""
    subprocess.run(
        ["git", "worktree", "add", "--quiet", "--detach", place, BEFORE], cwd=ROOT, check=True
    )
    files = subprocess.run(
        ["git", "diff", "--name-only", "--diff-filter=AM", BEFORE, "HEAD"],
        cwd=ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout.split()
    for name in files:
        if (
            re.search(r"_test\.(cc|py|sh)$|/testing/|^tests/.*\.(py|h)$", name)
            and "BUILD" not in name
        ):
            (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, Path(place) / name)


def prove(rows):
    """Today's tests on the code before: each must fail, or not build, since the tested code is
    missing."""
    place = tempfile.mkdtemp(prefix="starling-before.")
    os.rmdir(place)
    try:
        check_out_before(place)
        bad, verdicts = judge(
            Path(place), [row for row in rows if row.kind == "test"], lambda text: text != "passed"
        )
    finally:
        bazel(place, "shutdown", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(["git", "worktree", "remove", "--force", place], cwd=ROOT, check=False)
    missing = verdicts[NOT_BUILT]
    print(
        f"figure: {summary(rows)}; on {BEFORE} {bad} rows have a test that passes; "
        f"{verdicts.total()} tests: {verdicts.total() - missing - verdicts['passed']} ran and "
        f"failed, {missing} do not build, since what they call is not there"
    )
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    rows = read_rows(CASES.read_text())
    if options.prove:
        return 1 if prove(rows) else 0
    if options.rows:
        bad = sum(row.kind == "open" for row in rows)
    else:
        bad, _ = judge(ROOT, rows, lambda text: text == "passed")
    print(f"figure: {summary(rows)}; {bad} rows without evidence that holds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
