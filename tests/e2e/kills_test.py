"""docs/images/kills.svg is what tests/e2e/kills.py draws from the log beside it, and shows it."""

import json
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.e2e import kills

IMAGES = Path("docs/images")


class Kills(unittest.TestCase):
    def setUp(self):
        self.log = json.loads((IMAGES / "kills.json").read_text())

    def test_the_picture_is_drawn_from_the_log(self):
        self.assertEqual((IMAGES / "kills.svg").read_text(), kills.draw(self.log))

    def test_seed_and_kills_are_on_it(self):
        root = ElementTree.fromstring(kills.draw(self.log))
        said = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertTrue(any(f"(seed {self.log['seed']})" in words for words in said), said)
        roles = {process.split("-")[0] for process, _, _ in self.log["killed"]["kills"]}
        self.assertEqual(roles, {"shard", "worker", "coordinator"})
        for process, at, step in self.log["killed"]["kills"]:
            self.assertIn(f"kill -9 {process} at {at:.1f} s, step {step}", said)

    def test_both_runs_have_the_same_parameters(self):
        self.assertEqual(self.log["killed"]["sha256"], self.log["undisturbed"]["sha256"])

    def test_curves_stay_within_the_picture(self):
        root = ElementTree.fromstring(kills.draw(self.log))
        _, _, width, height = map(float, root.get("viewBox").split())
        lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
        self.assertEqual(len(lines), 4)
        for line in lines:
            points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
            self.assertGreater(len(points), 10)
            self.assertTrue(all(0 <= x <= width and 0 <= y <= height for x, y in points))


if __name__ == "__main__":
    unittest.main()
