"""Writes the table of docs/benchmarks/gpu.md from the output of run_gpu.sh.

    bundle/run_gpu.sh | tee output; python3 tools/bench/gpu_table.py COMMIT <output

Prints Markdown. Exit status 1: the output has no figure of a GPU.
"""

import datetime
import re
import sys


def figures(text):
    """(name, {key: value}) of each line "figure NAME KEY=VALUE ..."."""
    for line in text.splitlines():
        if line.startswith("figure "):
            name, *pairs = line.split()[1:]
            yield name, dict(pair.split("=", 1) for pair in pairs)


def table(text, commit, date):
    found = list(figures(text))
    machine = re.search(r"^starling .*, GPU: (.*)$", text, re.M)
    if not found or not machine:
        return None
    version = next((values["version"] for _, values in found if "version" in values), "none")
    lines = [f"{date}, {machine.group(1)}, PyTorch {version}, commit {commit}:", ""]
    training = [(name, values) for name, values in found if "ours" in values]
    if training:
        lines += [
            "| net | samples/s | TFLOP/s | PyTorch, `torch.compile` | ratio (least to greatest) |",
            "|---|---|---|---|---|",
        ]
        for name, values in training:
            spread = f" ({values['least']} to {values['greatest']})" if "least" in values else ""
            lines.append(
                f"| {name} | {values['ours']} | {values['tflops']} | {values['torch']} "
                f"| {values['ratio']}{spread} |"
            )
        lines.append("")
    servers = [(name, values) for name, values in found if "servers" in values]
    if servers:
        lines += [
            "| with two shards at staleness 1 | samples/s | local update | ratio |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {name.removeprefix('servers-')} | {values['servers']} | {values['local']} "
            f"| {values['ratio']} |"
            for name, values in servers
        ]
        lines.append("")
    return "\n".join(lines)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    text = table(sys.stdin.read(), sys.argv[1], datetime.date.today().isoformat())
    if text is None:
        sys.exit(
            "gpu_table: expected what run_gpu.sh prints on a machine with a GPU, found no figure "
            "in it"
        )
    print(text)


if __name__ == "__main__":
    main()
