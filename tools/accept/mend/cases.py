"""Judges cases.txt: every row has evidence, and every test that it names passes.

    cases.py            checks the rows and runs the tests on this tree
    cases.py --rows     checks the rows only
    cases.py --prove    runs today's tests on the commit before the mends, where none may pass. Only
                        a test that runs and fails there proves its row; which rows have none is
                        said

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
PASSED, FAILED, SKIPPED = report.PASSED, report.FAILED, report.SKIPPED
NOT_BUILT = "there is no such target, or it does not build"
NO_CASE = "there is no such case"
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
            cases = {name: state for name, state, _ in report.cases_of(found)}
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
    """PASSED, FAILED or SKIPPED, or why it did not run."""
    result = results.get(test.target)
    if result is None:
        return NOT_BUILT
    whole = PASSED if result.passed else FAILED
    if test.name in result.cases:
        return result.cases[test.name]
    if test.name == "-":
        return whole
    said = in_log(result.log, test.name)
    if said is not None:
        return {"ok": PASSED, "skipped": SKIPPED}.get(said, FAILED)
    return whole if in_source(root, test.target, test.name) else NO_CASE


def judge(root, rows, bad):
    """Runs the rows' tests and prints the verdicts; returns those of each row, by its id.
    `bad(verdict)`: whether to say so of a test."""
    results = run_targets(root, {test.target for row in rows for test in row.tests})
    verdicts = {}
    for row in rows:
        found = [(test, verdict(root, results, test)) for test in row.tests]
        verdicts[row.id] = [text for _, text in found]
        good = row.kind != "open" and not any(map(bad, verdicts[row.id]))
        print(
            f"{'   ' if good else 'BAD'} {row.id:5} {row.what[:70]:70} "
            f"{row.text if not found else ''}"
        )
        for test, text in found:
            print(f"          {'BAD ' if bad(text) else ''}{test.target} {test.name}: {text}")
    return verdicts


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


def proof(verdicts):
    """Of {row: its tests' verdicts on the code before the mends}: (the rows with a test that
    passes, those that are proved, in words what is proved)."""
    passing = [row for row, found in verdicts.items() if PASSED in found]
    proved = [row for row, found in verdicts.items() if FAILED in found and row not in passing]
    silent = [row for row in verdicts if row not in passing + proved]
    tests = collections.Counter(text for found in verdicts.values() for text in found)
    text = (
        f"{len(proved)} rows are proved: a test of theirs ran and failed; {len(passing)} have a "
        f"test that passes{listed(passing)}; of {len(silent)} no test ran{listed(silent)}; of "
        f"{tests.total()} tests {tests[FAILED]} ran and failed, {tests[PASSED]} passed, "
        f"{tests[NOT_BUILT]} do not build, since what they call is not there, {tests[NO_CASE]} are "
        f"in no target there, {tests[SKIPPED]} were skipped"
    )
    return passing, proved, text


def listed(rows):
    return f" ({', '.join(rows)})" if rows else ""


def prove(rows):
    """Today's tests on the code before the mends: whether some ran and failed, and none passed."""
    place = tempfile.mkdtemp(prefix="starling-before.")
    os.rmdir(place)
    try:
        check_out_before(place)
        verdicts = judge(
            Path(place), [row for row in rows if row.kind == "test"], lambda text: text == PASSED
        )
    finally:
        bazel(place, "shutdown", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(["git", "worktree", "remove", "--force", place], cwd=ROOT, check=False)
    passing, proved, text = proof(verdicts)
    print(f"figure: {summary(rows)}; on {BEFORE} {text}")
    return bool(proved) and not passing


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    rows = read_rows(CASES.read_text())
    if options.prove:
        return 0 if prove(rows) else 1
    bad = sum(row.kind == "open" for row in rows)
    if not options.rows:
        verdicts = judge(ROOT, rows, lambda text: text != PASSED)
        bad += sum(any(text != PASSED for text in found) for found in verdicts.values())
    print(f"figure: {summary(rows)}; {bad} rows without evidence that holds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
