"""A real Prometheus scrapes a training cluster, and every expression of the dashboard has data
there.

STARLING_PROMETHEUS is the folder with Debian's prometheus and promtool (tools/setup.sh --tests).
"""

import json
import math
import os
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from tests.e2e.admin_test import endless
from tests.e2e.cluster import ROOT, Cluster, free_port, wait_until

PROGRAMS = Path(os.environ.get("STARLING_PROMETHEUS", "/nonexistent"))
DAEMONS = ("coordinator", "shard-0", "shard-1", "worker-0", "worker-1")
JOB = "watched"


def dashboard_expressions():
    """The dashboard's expressions as Grafana sends them, with its variables filled in."""
    dashboard = json.loads((ROOT / "deploy/monitoring/dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$job_name", JOB).replace("$__rate_interval", "20s")


class Prometheus:
    """The real program on a free port, scraping `targets` (name -> port) every second."""

    def __init__(self, directory, targets):
        self.address = f"127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ROOT / "deploy/monitoring/alerts.yaml")],
            "scrape_configs": [
                {
                    "job_name": "starling",
                    "static_configs": [
                        {"targets": [f"127.0.0.1:{port}" for port in targets.values()]}
                    ],
                }
            ],
        }
        path = directory / "prometheus.json"  # JSON is YAML
        path.write_text(json.dumps(config))
        with open(directory / "prometheus.log", "wb") as log:
            self.process = subprocess.Popen(
                [
                    PROGRAMS / "prometheus",
                    f"--config.file={path}",
                    f"--web.listen-address={self.address}",
                    f"--storage.tsdb.path={directory / 'prometheus'}",
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=directory,
            )

    def ask(self, path, **parameters):
        """The API's answer; None if it does not answer (yet)."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return json.load(reply)["data"]
        except OSError as error:
            if hasattr(error, "read"):  # it rejects the query
                raise RuntimeError(f"{parameters}: {error.read().decode()}") from error
            return None

    def query(self, expression):
        """The samples' current values, without NaN and infinity."""
        data = self.ask("query", query=expression) or {"result": []}
        values = [float(sample["value"][1]) for sample in data["result"]]
        return [value for value in values if not math.isnan(value)]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@unittest.skipUnless(
    (PROGRAMS / "prometheus").exists(),
    "no Prometheus: run tools/setup.sh --tests, and set STARLING_PROMETHEUS",
)
class PrometheusTest(unittest.TestCase):
    def test_it_scrapes_a_training_cluster(self):
        with Cluster(shards=2, workers=2, checkpoints=True) as cluster:
            prometheus = Prometheus(cluster.directory, {d: cluster.admin_port(d) for d in DAEMONS})
            self.addCleanup(prometheus.stop)
            cluster.submit(endless(JOB, cluster.directory))
            cluster.wait_progress(JOB, epoch=1)
            wait_until(
                lambda: prometheus.query("sum(up)") == [len(DAEMONS)], 120, "all daemons to be up"
            )
            self.check_metrics(cluster)
            expressions = self.check_dashboard(prometheus)
            self.check_alerts(prometheus)
            self.check_deletion(cluster, prometheus)
            print(
                f"\nfigure: {len(DAEMONS)} daemons scraped, promtool has nothing to say, "
                f"{expressions} of {expressions} expressions of the dashboard have data, 0 series "
                "of a deleted job are left"
            )

    def check_metrics(self, cluster):
        for daemon in DAEMONS:
            text = cluster.ask(daemon, "/metrics")[2]
            result = subprocess.run(
                [PROGRAMS / "promtool", "check", "metrics"],
                input=text,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""), daemon)

    def check_dashboard(self, prometheus):
        expressions = list(dashboard_expressions())
        self.assertGreater(len(expressions), 20)
        for expression in expressions:
            wait_until(
                lambda e=expression: prometheus.query(e),
                120,
                f"data for {expression}",
                interval=0.5,
            )
        self.assertEqual(prometheus.ask("label/job_name/values"), [JOB])
        return len(expressions)

    def check_alerts(self, prometheus):
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        self.assertGreaterEqual(len(rules), 6)
        self.assertEqual([r["name"] for r in rules if r["health"] == "err"], [])
        self.assertEqual([r["name"] for r in rules if r["state"] == "firing"], [])

    def check_deletion(self, cluster, prometheus):
        series = f'{{job_name="{JOB}"}}'
        self.assertTrue(prometheus.query(series))
        cluster.cli("cancel", JOB)
        cluster.wait(JOB)
        self.assertTrue(
            prometheus.query(f'starling_job_step{series}'), "until it is deleted it is there"
        )
        result = cluster.cli("delete", JOB)
        self.assertEqual(result.returncode, 0, result.stderr)
        wait_until(
            lambda: prometheus.ask("query", query=series)["result"] == [], 60, "its series to go"
        )


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
