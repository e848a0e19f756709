"""The client waits for a coordinator that starts a moment later."""

import subprocess
import time
import unittest

from tests.e2e.cluster import Cluster, binary, free_port


class Client(unittest.TestCase):
    def test_a_coordinator_on_its_way_up(self):
        cluster = Cluster(shards=0, workers=0)
        cluster.coordinator = f"127.0.0.1:{free_port()}"
        client = subprocess.Popen(
            [binary("tools/cli/starling"), "get", "shards", "--coordinator", cluster.coordinator],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        time.sleep(0.3)  # its first attempts fail
        with cluster:
            output, _ = client.communicate(timeout=30)
        self.assertEqual(client.returncode, 0, output)


if __name__ == "__main__":
    unittest.main()
