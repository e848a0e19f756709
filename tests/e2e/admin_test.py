"""The admin ports of real daemons: metrics as documented, health, readiness, pages, and bad
requests."""

import http.client
import json
import resource
import socket
import sys
import threading
import unittest
import urllib.error

from tests.e2e import scrape
from tests.e2e.bsp_matrix_test import write_idx
from tests.e2e.cluster import ROOT, Cluster, job_file, wait_until

IDLE = 1000
ROLES = {
    "coordinator": "coordinator",
    "shard-0": "shard",
    "worker-0": "worker",
    "worker-1": "worker",
}


def endless(name, folder):
    """A job that trains until it is cancelled, evaluated after each of many short epochs; in
    fp16 and with checkpoints, which have metrics of their own."""
    images, labels = write_idx(folder, samples=640)
    data = {"idx": {"images": images, "labels": labels}}
    job = job_file(
        name,
        {"builtin": "mlp", "hidden": [32, 16]},
        {"train": data, "test": data},
        consistency={"ssp": {"staleness": 2}},
        workers={"min": 2, "max": 2},
        evaluate={"everyEpochs": 1},
        stop={"epochs": 100000},
    )
    job["spec"]["precision"] = "fp16"
    job["spec"]["checkpoint"] = {"everySteps": 100}
    return job


class Admin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(shards=1, workers=2, checkpoints=True)
        cls.addClassCleanup(lambda: cls.cluster.__exit__(None, None, None))
        cls.cluster.__enter__()

    def metrics(self, name):
        status, headers, text = self.cluster.ask(name, "/metrics")
        self.assertEqual(status, 200)
        self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        return scrape.parse(text)

    def start(self, name):
        self.cluster.submit(endless(name, self.cluster.directory))
        self.cluster.wait_progress(name, epoch=1)
        for metric, what in (
            ("starling_job_test_accuracy", "an evaluation"),
            ("starling_checkpoint_last_success_timestamp_seconds", "a checkpoint"),
        ):
            wait_until(lambda m=metric: m in self.metrics("coordinator"), 60, what)

    def finish(self, name):
        self.cluster.cli("cancel", name)
        self.cluster.wait(name)
        result = self.cluster.cli("delete", name)
        self.assertEqual(result.returncode, 0, result.stderr)

    def goes_on(self, name):
        before = int(self.cluster.describe(name)["step"])
        wait_until(
            lambda: int(self.cluster.describe(name)["step"]) > before, 60, "training to go on"
        )

    def series_of(self, job):
        return [
            (daemon, sample)
            for daemon in ROLES
            for _, samples in self.metrics(daemon).values()
            for sample, labels, _ in samples
            if labels.get("job_name") == job
        ]

    def test_1_metrics_are_those_of_the_documents(self):
        table = scrape.documented(ROOT / "docs/metrics.md")
        self.start("documented")
        for daemon, role in ROLES.items():
            exported = {
                name: (kind, scrape.label_names(samples))
                for name, (kind, samples) in self.metrics(daemon).items()
            }
            expected = {
                name: (kind, labels)
                for name, (kind, labels, by) in table.items()
                if by in ("all", role)
            }
            self.assertEqual(exported, expected, daemon)
        first = self.metrics("worker-0")
        self.assertGreater(
            scrape.value(first, "starling_worker_steps_total", job_name="documented"), 0
        )
        wait_until(
            lambda: scrape.value(self.metrics("worker-0"), "starling_worker_steps_total")
            > scrape.value(first, "starling_worker_steps_total"),
            60,
            "a step to be counted",
        )
        self.assertGreater(
            scrape.value(self.metrics("shard-0"), "starling_ps_received_bytes_total"), 0
        )
        self.assertEqual(
            scrape.value(self.metrics("coordinator"), "starling_staleness_bound_steps"), 2
        )
        self.finish("documented")
        wait_until(lambda: not self.series_of("documented"), 30, "the deleted job's series to go")

    def test_2_all_are_well_and_ready(self):
        for daemon in ROLES:
            self.assertEqual(self.cluster.ask(daemon, "/healthz")[::2], (200, "ok\n"), daemon)
            self.assertEqual(self.cluster.ask(daemon, "/readyz")[::2], (200, "ok\n"), daemon)

    def test_3_the_page_fetches_what_there_is(self):
        self.start("seen")
        status, headers, page = self.cluster.ask("coordinator", "/")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertTrue(page.startswith("<!doctype html>"))
        shown = json.loads(self.cluster.ask("coordinator", "/status.json")[2])
        self.assertEqual([(j["name"], j["state"]) for j in shown["jobs"]], [("seen", "RUNNING")])
        self.assertEqual({w["name"] for w in shown["workers"]}, {"worker-0", "worker-1"})
        self.assertEqual([s["state"] for s in shown["shards"]], ["ready"])
        wait_until(
            lambda: json.loads(self.cluster.ask("coordinator", "/curves.json?job=seen")[2])["step"],
            60,
            "a point of the curve",
        )
        self.assertEqual(self.cluster.ask("coordinator", "/curves.json?job=other")[0], 404)
        self.finish("seen")

    def test_4_bad_requests_change_nothing(self):
        self.start("attacked")
        port = self.cluster.admin_port("coordinator")
        for junk in (
            b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nsubmit me",
            b"DELETE /jobs HTTP/1.1\r\n\r\n",
            b"GET /" + b"a" * 100_000,
            b"\x16\x03\x01" + bytes(1000),
            b"GET / HTTP/1.1\r\nA" + b"a" * 9000,
            b"\r\n\r\n",
            b"GET /%00 HTTP/9\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
                try:
                    peer.sendall(junk)
                    answer = peer.recv(100)
                except ConnectionError:
                    continue  # refused before all of it was sent
                self.assertRegex(answer, rb"^HTTP/1\.1 4|^HTTP/1\.1 505", junk[:40])
        self.goes_on("attacked")
        self.finish("attacked")

    def test_5_a_thousand_idle_connections_on_each_port(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = len(ROLES) * IDLE + 200
        if hard != resource.RLIM_INFINITY and hard < wanted:
            self.skipTest(f"only {hard} files may be open")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.start("crowded")
        idle = []
        self.addCleanup(lambda: [peer.close() for peer in idle])
        for daemon in ROLES:
            port = self.cluster.admin_port(daemon)
            idle += [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(IDLE)]
        for daemon in ROLES:
            self.assertEqual(self.cluster.ask(daemon, "/readyz")[0], 200, daemon)
            seen = self.metrics(daemon)
            self.assertGreaterEqual(
                scrape.value(seen, "starling_admin_connections_total", outcome="evicted"), 1
            )
            self.assertLess(scrape.value(seen, "starling_process_open_files"), 600)
        self.goes_on("crowded")
        self.finish("crowded")

    def test_6_a_worker_without_a_coordinator_is_well_but_not_ready(self):
        cluster = self.cluster
        real, cluster.coordinator = cluster.coordinator, "127.0.0.1:1"
        try:
            cluster.start_worker("lonely")
            status, _, text = wait_until(
                lambda: (answer := cluster.ask("lonely", "/readyz"))
                and "no coordinator at 127.0.0.1:1" in answer[2]
                and answer,
                60,
                "the reason",
            )
            self.assertEqual(status, 503, text)
            self.assertEqual(cluster.ask("lonely", "/healthz")[0], 200)
        finally:
            cluster.coordinator = real
            cluster.kill("lonely")

    def test_7_scrapes_while_a_worker_shuts_down(self):
        cluster = self.cluster
        cluster.start_worker("leaving")
        wait_until(
            lambda: cluster.ask("leaving", "/readyz")[0] == 200, 60, "the worker to be ready"
        )
        answers, stop = [], threading.Event()

        def scrape_on():
            while not stop.is_set():
                try:
                    answers.append(cluster.ask("leaving", "/metrics")[0])
                except (urllib.error.URLError, ConnectionError, http.client.HTTPException):
                    answers.append(None)  # the port is closed
                    return

        scrapers = [threading.Thread(target=scrape_on) for _ in range(4)]
        for scraper in scrapers:
            scraper.start()
        try:
            wait_until(lambda: answers.count(200) > 5, 60, "some scrapes")
            cluster.processes["leaving"].terminate()
            self.assertEqual(cluster.exit_status("leaving", timeout=60), 0)
        finally:
            stop.set()
            for scraper in scrapers:
                scraper.join(60)
        self.assertEqual(set(answers) - {200, None}, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
