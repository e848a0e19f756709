"""Reads Prometheus' text format, and docs/metrics.md."""

import re

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
ROW = re.compile(r'^\| `(starling_\w+)` \| (\w+) \|([^|]*)\|([^|]*)\|')


def parse(text):
    """Metric -> (type, [(sample's name, labels, value)]); raises if the text is malformed."""
    metrics, current = {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split()[2]
            assert current not in metrics, f"{current} comes twice"
            assert len(line.split()) > 3, f"{current} has no help"
            metrics[current] = [None, []]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == current, line
            metrics[name][0] = kind
        else:
            match = SAMPLE.match(line)
            assert match and match[1].startswith(current), f"malformed: {line!r}"
            labels = dict(LABEL.findall(match[2] or ""))
            metrics[current][1].append((match[1], labels, float(match[3])))
    return metrics


def value(metrics, name, **labels):
    """The one sample of that name with these labels."""
    found = [
        v
        for _, samples in metrics.values()
        for sample, had, v in samples
        if sample == name and labels.items() <= had.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def label_names(samples):
    return {name for _, labels, _ in samples for name in labels} - {"le"}


def documented(path):
    """Metric -> (type, label names, role) of the table in docs/metrics.md."""
    table = {}
    for line in path.read_text().splitlines():
        if match := ROW.match(line):
            table[match[1]] = (match[2], set(re.findall(r"`(\w+)`", match[3])), match[4].strip())
    return table
