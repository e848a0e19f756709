"""A real job's curves as other programs read them: TensorBoard's event files by the tensorboard
package, the SVG by an XML reader.

A job with `tensorboard:` trains while its coordinator is killed and restarted. For each curve the
package lists the same steps and values as `starling metrics -o json`: from the coordinator's own
files, across the restart, and from those of `starling metrics --tensorboard`. Prints `figure: ...`.
"""

import json
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import Cluster, job_file, wait_until

SCALARS = {
    "loss/train": "trainLoss",
    "accuracy/train": "trainAccuracy",
    "learning_rate": "learningRate",
    "throughput/samples_per_second": "samplesPerSecond",
    "throughput/hidden_share": "hiddenShare",
    "staleness/max": "stalenessMax",
}
TESTS = {"loss/test": "testLoss", "accuracy/test": "testAccuracy"}


class CurvesTest(unittest.TestCase):
    def submit(self, cluster, folder, tensorboard):
        images, labels = write_idx(folder, samples=2048, size=28)
        data = {"idx": {"images": images, "labels": labels}}
        job = job_file(
            "drawn",
            {"builtin": "mlp", "hidden": [256]},
            {"train": data, "test": data},
            optimizer={"momentum": {"learningRate": {"cosine": {"peak": 0.05, "warmupSteps": 20}}}},
            consistency={"ssp": {"staleness": 2}},
            workers={"min": 2, "max": 2},
            evaluate={"everyEpochs": 20},
            batch={"global": 64, "microBatches": 2},
            stop={"epochs": 100},
        )
        job["spec"]["tensorboard"] = tensorboard
        return cluster.submit(job)

    def compare(self, folder, curves):
        """The number of values that the package lists; all of them match the curves."""
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
        events.Reload()
        self.assertEqual(set(events.Tags()["scalars"]), {*SCALARS, *TESTS})
        values = 0
        points = {
            tag: {p["step"]: p[key] for p in curves["points"] if key in p}
            for tag, key in SCALARS.items()
        }
        points.update(
            {
                tag: {e["step"]: e[key] for e in curves["status"]["epochsDone"] if e["evaluated"]}
                for tag, key in TESTS.items()
            }
        )
        for tag, wanted in points.items():
            found = {event.step: event.value for event in events.Scalars(tag)}
            self.assertEqual(
                found, {step: np.float32(value) for step, value in wanted.items()}, tag
            )
            values += len(found)
        histograms = {
            event.step: list(event.histogram_value.bucket)
            for event in events.Histograms("staleness")
        }
        self.assertEqual(
            histograms,
            {
                p["step"]: [float(n) for n in p["stalenessHistogram"]]
                for p in curves["points"]
                if p["stalenessHistogram"]
            },
        )
        return values + len(histograms)

    def test_the_package_lists_the_same_values(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(
            shards=2, workers=2, worker_flags=["--lanes", "1"]
        ) as cluster:
            runs = Path(folder) / "runs"
            with self.assertRaisesRegex(
                RuntimeError, "tensorboard: cannot make the folder /proc/nothing"
            ):
                self.submit(cluster, folder, "/proc/nothing")
            self.submit(cluster, folder, str(runs))
            wait_until(lambda: len(self.curves(cluster)["points"]) >= 3, 240, "three points")
            cluster.kill("coordinator")
            cluster.start_coordinator()
            self.assertEqual(cluster.wait("drawn", 240), 0, cluster.describe("drawn"))
            # When the job has ended, its last points may not be on disk yet.
            files = wait_until(
                lambda: len(list(runs.iterdir())) >= 2 and list(runs.iterdir()),
                60,
                "a file of each session",
            )
            curves = self.curves(cluster)
            last = curves["points"][-1]
            self.assertEqual(last["step"], curves["status"]["steps"])
            wait_until(lambda: self.last_step(runs) == last["step"], 60, "the last point's event")
            theirs = self.compare(runs, curves)
            exported = Path(folder) / "exported"
            result = cluster.cli("metrics", "drawn", "--tensorboard", str(exported))
            self.assertEqual(result.returncode, 0, result.stderr)
            ours = self.compare(exported, curves)
            self.check_pictures(cluster, folder)
        print(
            f"figure: {theirs} values of {len(files)} files, across a coordinator's restart, and "
            f"{ours} of the client's: all equal to those of starling metrics"
        )

    def last_step(self, folder):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        return events.Scalars("learning_rate")[-1].step

    def curves(self, cluster):
        result = cluster.cli("metrics", "drawn", "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def check_pictures(self, cluster, folder):
        self.assertIn("train loss", cluster.cli("metrics", "drawn").stdout)
        svg = Path(folder) / "curve.svg"
        self.assertEqual(cluster.cli("plot", "drawn", "-o", str(svg)).returncode, 0)
        root = ElementTree.parse(svg).getroot()
        lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
        self.assertEqual(len(lines), 6)


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False, verbosity=0).result.wasSuccessful())
