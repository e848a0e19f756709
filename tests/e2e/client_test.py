"""The programs by themselves: the client waits for a coordinator that starts a moment later, and
what --help lists."""

import subprocess
import time
import unittest

from tests.e2e.cluster import Cluster, binary, free_port


FOR_TESTS = {
    "server/coordinator/starling-coordinator": ["--inject-clock-offset", "1s"],
    "server/shard/starling-ps": ["--inject-apply-wait", "0.1s"],
    "worker/starling-worker": ["--replay-compute", "0.02s,0.04s", "--inject-push-delay", "0.1s"],
}


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


class Help(unittest.TestCase):
    def run_it(self, label, *flags):
        result = subprocess.run(
            [binary(label), *flags], capture_output=True, text=True, timeout=30, check=False
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_it_has_nothing_that_is_for_tests_alone(self):
        for label, flags in FOR_TESTS.items():
            words = self.run_it(label, "--help")
            self.assertIn("--log-format", words)
            for flag in ("inject", "replay"):
                self.assertNotIn(flag, words, label)
            self.run_it(label, *flags, "--print-config")  # they are there


if __name__ == "__main__":
    unittest.main()
