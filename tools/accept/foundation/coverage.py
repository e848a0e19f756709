"""Which lines of the host files ran, from the counters of a program compiled with --coverage.

    coverage.py COUNTERS OBJECTS LIST

COUNTERS: the folder with .gcda files; OBJECTS: Bazel's folder with the .gcno files beside the
objects; LIST: file names without their endings, from the working directory, one per line, and
comments (#). Prints a row per file, and at last `all LINES-RUN LINES PERCENT %`.
"""

import json
import pathlib
import shutil
import subprocess
import sys
from collections import Counter


def lines_of(counters, objects):
    """{file: Counter {line: times it ran}}: a line counts once, however many objects have it."""
    files = {}
    for data in counters.rglob('*.gcda'):
        # COUNTERS/…/bazel-out/CONFIGURATION/bin/PATH
        path = pathlib.Path(str(data).split('/bin/', 1)[1])
        shutil.copy((objects / path).with_suffix('.gcno'), data.parent)
        report = subprocess.run(
            ['gcov', '--json-format', '--stdout', data.name],
            cwd=data.parent,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for line in report.splitlines():
            for file in json.loads(line)['files']:
                counts = files.setdefault(file['file'], Counter())
                for row in file['lines']:
                    counts[row['line_number']] += row['count']
    return files


def main():
    counters, objects, names = map(pathlib.Path, sys.argv[1:])
    files = lines_of(counters, objects)
    ran = lines = 0
    for name in names.read_text().splitlines():
        if not name or name.startswith('#'):
            continue
        # A header's lines count in whatever includes it, so they do not show that its .cc is there.
        expected = f'{name}.cc' if pathlib.Path(f'{name}.cc').exists() else f'{name}.h'
        if expected not in files:
            sys.exit(f'{expected} did not run at all, or is no file of the simulator')
        for file in (f'{name}.h', f'{name}.cc'):
            counts = files.get(file)
            if not counts:
                continue
            here = sum(times > 0 for times in counts.values())
            ran += here
            lines += len(counts)
            print(f'{file:50} {here:5} {len(counts):5} {100 * here / len(counts):6.1f} %')
    print(f'{"all":50} {ran:5} {lines:5} {100 * ran / lines:6.1f} %')


if __name__ == '__main__':
    main()
