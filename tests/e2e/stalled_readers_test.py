"""Readers request values and read nothing: their streams are closed, and the job is exact (H4)."""

import re
import sys
import unittest

from tests.e2e.cluster import Cluster, floats, job_file, protocol_number, wait_until
from tests.e2e.promises import check_counted
from tests.e2e.strangers import listening_ports, stalled_reader

ROWS = 1 << 20  # 4 MiB of parameters, in slices of 1 MiB
BUDGET = 4 << 20
READERS = 24
EPOCHS = 6


class StalledReaders(unittest.TestCase):
    def old_values(self, cluster):
        page = cluster.ask("shard-0", "/metrics")[2]
        return float(
            re.search(r"^starling_ps_old_values_bytes\S* (\S+)$", page, re.MULTILINE).group(1)
        )

    def closed(self, cluster):
        log = (cluster.directory / "shard-0.log").read_text(errors="replace")
        return len(re.findall(r"client:stalled.*the shard needs the memory", log))

    def test_the_worst_streams_end_and_the_job_does_not(self):
        with Cluster(
            shards=1, workers=1, flags_of={"shard-0": ["--inject-old-values", str(BUDGET)]}
        ) as cluster:
            cluster.submit(
                job_file(
                    "counter",
                    {"builtin": "counter"},
                    {"train": {"counter": {"samples": ROWS}}},
                    batch={"global": 2048, "microBatches": 1},
                    optimizer={"sgd": {"learningRate": 1}},
                    consistency={"ssp": {"staleness": 1}},
                    stop={"epochs": EPOCHS},
                )
            )
            status = cluster.wait_progress("counter", step=2)
            ports = listening_ports(cluster.processes["shard-0"].pid)
            ports.remove(cluster.admin_port("shard-0"))
            readers = []
            self.addCleanup(lambda: [reader.close() for reader in readers])
            for _ in range(READERS):  # one version each
                step = int(cluster.describe("counter")["step"])
                readers.append(
                    stalled_reader(("127.0.0.1", ports[0]), protocol_number(), int(status["uid"]))
                )
                cluster.wait_progress("counter", step=step + 1)
            self.assertEqual(
                cluster.describe("counter")["state"], "RUNNING", "the readers came too late"
            )
            # Each pinned a slice of a different version, six times the budget: the worst were
            # closed.
            wait_until(
                lambda: self.old_values(cluster) <= BUDGET,
                60,
                "old values to fit into their budget",
            )
            self.assertGreater(self.closed(cluster), 0)
            self.assertEqual(cluster.wait("counter"), 0)
            rows = floats(cluster.export("counter")["counter"])
            check_counted(rows, EPOCHS, ROWS)
            for reader in readers:
                reader.close()
            wait_until(
                lambda: self.old_values(cluster) == 0, 60, "what the readers held to be free"
            )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
