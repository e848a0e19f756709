"""The real programs accept every command line of the manifests, certificates included."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import manifests
from manifests import CLUSTERS, ROOT, pod_template, workloads
from tests.e2e.cluster import binary

PROGRAMS = {
    "starling-coordinator": "server/coordinator/starling-coordinator",
    "starling-ps": "server/shard/starling-ps",
    "starling-worker": "worker/starling-worker",
}
# What Kubernetes would substitute for the variables.
VARIABLES = {
    "POD_NAME": "starling-shard-0",
    "POD_NAMESPACE": "starling",
    "POD_IP": "10.1.2.3",
    "CPU_LIMIT": "2",
}


def lines_of(folder):
    """(program, role, arguments) of each container."""
    kubectl = manifests.debian_kubectl() or manifests.current_kubectl()
    for document in workloads(manifests.render(kubectl, folder)):
        for container in pod_template(document)["spec"]["containers"]:
            yield container["command"][0], container["name"], container["args"]


class Flags(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.certificates = Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        subprocess.run(
            [ROOT / "tools" / "make_certs.sh", cls.certificates], check=True, timeout=120
        )

    def print_config(self, program, role, arguments):
        """Runs the program with these arguments and the role's certificates."""

        def local(argument):
            argument = re.sub(r"\$\((\w+)\)", lambda m: VARIABLES[m.group(1)], argument)
            return argument.replace("/etc/starling/tls", str(self.certificates / role))

        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("STARLING_")
        }
        return subprocess.run(
            [binary(PROGRAMS[program]), *map(local, arguments), "--print-config"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )

    def test_every_command_line_is_understood(self):
        seen = set()
        for folder in CLUSTERS:
            for program, role, arguments in lines_of(folder):
                if (program, *arguments) in seen:
                    continue
                seen.add((program, *arguments))
                result = self.print_config(program, role, arguments)
                self.assertEqual(result.returncode, 0, f"{program} {arguments}: {result.stderr}")
                for argument in arguments:
                    flag, value = argument.split("=", 1)
                    if "/" not in value and "$" not in value:
                        self.assertRegex(
                            result.stdout,
                            rf"(?m)^{flag[2:]} +{re.escape(value)} +{flag}$",
                            argument,
                        )
        self.assertEqual({program for program, *_ in seen}, set(PROGRAMS))

    def test_a_wrong_one_is_not(self):
        program, role, arguments = next(lines_of("base"))
        for wrong in ("--no-such-flag=1", "--cluster=another"):
            self.assertNotEqual(
                self.print_config(program, role, [*arguments, wrong]).returncode, 0, wrong
            )
        another = "shard" if role == "worker" else "worker"
        others = self.print_config(program, another, arguments)  # another role's certificates
        self.assertNotEqual(others.returncode, 0)


if __name__ == "__main__":
    if manifests.debian_kubectl() or manifests.current_kubectl():
        unittest.main()
    print("SKIPPED: no kubectl: run tools/setup.sh --tests")
