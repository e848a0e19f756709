"""A real Prometheus beside a cluster, with the alert rules of deploy/monitoring.

STARLING_PROMETHEUS is the folder with Debian's prometheus and promtool (tools/setup.sh --tests).
"""

import json
import math
import os
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

from tests.e2e.cluster import ROOT, free_port

PROGRAMS = Path(os.environ.get("STARLING_PROMETHEUS", "/nonexistent"))
WHY_NONE = (
    ""
    if (PROGRAMS / "prometheus").exists()
    else "no Prometheus: run tools/setup.sh --tests, and set STARLING_PROMETHEUS"
)


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

    def firing(self, **labels):
        """The names of the alerts that fire with these labels; None if it does not answer (yet)."""
        data = self.ask("alerts")
        if data is None:
            return None
        return {
            alert["labels"]["alertname"]
            for alert in data["alerts"]
            if alert["state"] == "firing" and labels.items() <= alert["labels"].items()
        }

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
