"""A real Prometheus scrapes a training cluster, and every expression of the dashboard has data
there.

STARLING_PROMETHEUS is the folder with Debian's prometheus and promtool (tools/setup.sh --tests).
"""

import json
import subprocess
import sys
import unittest

from tests.e2e.admin_test import endless
from tests.e2e.cluster import ROOT, Cluster, wait_until
from tests.e2e.prometheus import PROGRAMS, WHY_NONE, Prometheus

DAEMONS = ("coordinator", "shard-0", "shard-1", "worker-0", "worker-1")
JOB = "watched"


def dashboard_expressions():
    """The dashboard's expressions as Grafana sends them, with its variables filled in."""
    dashboard = json.loads((ROOT / "deploy/monitoring/dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$job_name", JOB).replace("$__rate_interval", "20s")


@unittest.skipIf(WHY_NONE, WHY_NONE)
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
