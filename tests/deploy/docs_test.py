"""What docs and manifests must not say again: sentences that readers cannot parse, and claims
that are no longer true."""

import unittest
from pathlib import Path

UNREADABLE = [
    (
        "The number of classes, which no job file says, is the one with which the model's tensors "
        "are the file's."
    ),
    "Where two attempts at one item differ, each slice has what its own attempt said.",
    "What is not possible is refused with the least that is.",
    (
        "Whatever starts them must wait 30 s after SIGTERM before it kills a worker, and 15 s the "
        "others."
    ),
    (
        "and to BSP where a shard has no memory for the sums that wait for their siblings, which "
        "only a job that begins in BSP"
    ),
]
STALE = ["there is no CUDA backend yet", "The CUDA backend has no operators yet"]


def texts(folder):
    """(path, text in one line, without comment marks) of each file meant for readers."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and path.suffix in (".md", ".yaml", "") and "BUILD" not in path.name:
            lines = path.read_text(encoding="utf-8").splitlines()
            yield path, " ".join(" ".join(line.lstrip("# ") for line in lines).split())


class DocsTest(unittest.TestCase):
    def check(self, folder, phrases):
        count = 0
        for path, text in texts(folder):
            count += 1
            for phrase in phrases:
                self.assertFalse(phrase in text, f"{path}: {phrase}")
        self.assertGreater(count, 2, folder)

    def test_no_sentence_that_cannot_be_parsed(self):
        self.check("docs", UNREADABLE)

    def test_nothing_stale_in_deploy(self):
        self.check("deploy", STALE)


if __name__ == "__main__":
    unittest.main()
