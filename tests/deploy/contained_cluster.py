"""contained_cluster.py ROOTS: runs the containers of deploy/kubernetes/base in unpacked roots.

ROOTS/server and ROOTS/worker are the images' contents. Each container of the rendered manifests
runs as Kubernetes would run it: its own command line, as process 1 of its namespace, user 10001, no
capabilities, a read-only root, the Secret and the ConfigMap mounted. Each pod has a loopback
address of its own; names that the cluster's DNS would resolve are in /etc/hosts. Then the probes
are called, the example Job runs to its end, and all containers get SIGTERM and must end in time,
with status 0.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import manifests
from manifests import pod_template

ROOTS = Path(sys.argv[1])
NAMESPACE = "starling"
DEADLINE = 120


class Pod:
    """One container of a workload, as pod `name` at `address`."""

    def __init__(self, document, name, address):
        self.spec = pod_template(document)["spec"]
        (self.container,) = self.spec["containers"]
        self.name, self.address = name, address
        self.process = None
        image = self.container["image"].rsplit("/", 1)[-1].split(":")[0]
        self.root = ROOTS / image.removeprefix("starling-")
        self.scratch = ROOTS / "pods" / name

    def environment(self):
        values = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "POD_NAME": self.name,
            "POD_NAMESPACE": NAMESPACE,
            "POD_IP": self.address,
            "CPU_LIMIT": "1",
        }
        for variable in self.container.get("env", []):
            if "value" in variable:
                values[variable["name"]] = variable["value"]
        return values

    def arguments(self):
        def put(text):
            text = re.sub(r"\$\((\w+)\)", lambda m: self.environment()[m.group(1)], text)
            return text.replace("0.0.0.0", self.address)

        return [put(text) for text in (*self.container["command"], *self.container.get("args", []))]

    def mounts(self, objects):
        """(source folder, mount point, read-only) of each volume, created as Kubernetes would."""
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        for mount in self.container["volumeMounts"]:
            source = self.scratch / mount["name"]
            source.mkdir(parents=True)
            volume = volumes.get(mount["name"], {})
            if "secret" in volume:
                role = volume["secret"]["secretName"].removeprefix("starling-").removesuffix("-tls")
                for file in (ROOTS / "certificates" / role).iterdir():
                    (source / file.name).write_bytes(file.read_bytes())
                    (source / file.name).chmod(volume["secret"]["defaultMode"])
                    os.chown(source / file.name, 0, self.spec["securityContext"]["fsGroup"])
            elif "configMap" in volume:
                for name, text in objects["ConfigMap", volume["configMap"]["name"]]["data"].items():
                    (source / name).write_text(text)
            else:
                os.chown(source, 0, self.spec["securityContext"]["fsGroup"])
                source.chmod(0o2770)
            (self.root / mount["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
            yield source, mount["mountPath"], mount.get("readOnly", False)

    def start(self, objects):
        (self.root / "etc" / "hosts").touch()
        context = self.spec["securityContext"]
        steps = [
            "set -e",
            f"mount --bind {self.root} {self.root}",
            f"mount -o remount,bind,ro {self.root}",
            f"mount -t proc proc {self.root}/proc",
            f"mount --rbind /dev {self.root}/dev",
            f"mount --bind {ROOTS}/hosts {self.root}/etc/hosts",
        ]
        for source, place, read_only in self.mounts(objects):
            steps.append(f"mount --bind {source} {self.root}{place}")
            if read_only:
                steps.append(f"mount -o remount,bind,ro {self.root}{place}")
        steps.append(
            f'exec /usr/sbin/chroot {self.root} setpriv --no-new-privs --reuid '
            f'{context["runAsUser"]} --regid {context["runAsGroup"]} --clear-groups '
            '--inh-caps=-all --bounding-set=-all "$@"'
        )
        log = open(ROOTS / f"{self.name}.log", "wb")
        self.process = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "bash",
                "-c",
                "; ".join(steps),
                "steps",
                *self.arguments(),
            ],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()

    def process_1(self):
        """The contained process, as seen from outside."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def probe(self, name):
        get = self.container[name]["httpGet"]
        port = {port["name"]: port["containerPort"] for port in self.container["ports"]}[
            get["port"]
        ]
        try:
            with urllib.request.urlopen(
                f"http://{self.address}:{port}{get['path']}", timeout=5
            ) as reply:
                return reply.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def wait_for(self, probe):
        end = time.monotonic() + DEADLINE
        while not self.probe(probe):
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with status {self.process.returncode}")
            if time.monotonic() > end:
                raise RuntimeError(
                    f"{self.name}: its {probe} does not answer with 200 in {DEADLINE} s"
                )
            time.sleep(0.2)

    def check_process(self):
        status = Path(f"/proc/{self.process_1()}/status").read_text()
        user = str(self.spec["securityContext"]["runAsUser"])
        for pattern in (
            rf"Uid:\t{user}\t{user}",
            r"CapEff:\t0+\n",
            r"NoNewPrivs:\t1\n",
            r"NSpid:\t\d+\t1\n",
        ):
            if not re.search(pattern, status):
                raise RuntimeError(f"{self.name}: expected {pattern!r} in\n{status}")

    def terminate(self, expected=0):
        """Sends SIGTERM; returns seconds until the exit, within the grace period, with the expected
        status."""
        begin = time.monotonic()
        os.kill(self.process_1(), signal.SIGTERM)
        status = self.process.wait(self.spec["terminationGracePeriodSeconds"])
        if status != expected:
            raise RuntimeError(f"{self.name} ended with status {status} after SIGTERM")
        return time.monotonic() - begin


def pods_of(objects):
    """A coordinator, the shards and the workers: all replicas of the manifests."""
    pods = []
    for key in (
        ("StatefulSet", "starling-coordinator"),
        ("StatefulSet", "starling-shard"),
        ("Deployment", "starling-worker"),
    ):
        document = objects[key]
        for i in range(document["spec"]["replicas"]):
            name = f"{document['metadata']['name']}-{i}"
            pods.append(Pod(document, name, f"127.0.1.{len(pods) + 1}"))
    return pods


def write_hosts(objects, pods):
    lines = ["127.0.0.1 localhost"]
    for pod in pods:
        names = [pod.name]
        if pod.name.startswith("starling-coordinator"):
            names.append("starling-coordinator")
        if pod.name.startswith("starling-shard"):
            service = objects["StatefulSet", "starling-shard"]["spec"]["serviceName"]
            names.append(f"{pod.name}.{service}.{NAMESPACE}.svc")
        lines.append(f"{pod.address} {' '.join(names)}")
    (ROOTS / "hosts").write_text("\n".join(lines) + "\n")


def run(pods, objects):
    for pod in pods:
        pod.start(objects)
        pod.wait_for("startupProbe")
    for pod in pods:
        pod.wait_for("readinessProbe")
        pod.check_process()
    example = manifests.render(manifests.debian_kubectl(), "example-job")
    job = Pod(example["Job", "example-training"], "example-training", "127.0.1.99")
    pods.append(job)
    for attempt in ("first", "again"):  # the pod that replaces an evicted one finds the job there
        job.start(example)
        if job.process.wait(DEADLINE) != 0:
            raise RuntimeError(
                f"the example Job, {attempt}, ended with status {job.process.returncode}"
            )
        subprocess.run(["rm", "-r", job.scratch], check=True)
    pods.pop()
    # The result of the example Job is lost with the last shard, which says so.
    last = next(pod for pod in pods if pod.name.startswith("starling-shard"))
    slowest = max(pod.terminate(expected=int(pod is last)) for pod in reversed(pods))
    print(
        f"contained: {len(pods)} daemons as process 1, the example Job twice, "
        f"all ended within {slowest:.1f} s of SIGTERM"
    )


def main():
    objects = manifests.render(manifests.debian_kubectl(), "base")
    subprocess.run(
        [manifests.ROOT / "tools" / "make_certs.sh", ROOTS / "certificates"],
        check=True,
        timeout=120,
    )
    pods = pods_of(objects)
    write_hosts(objects, pods)
    try:
        run(pods, objects)
    except Exception:
        for log in sorted(ROOTS.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        for pod in pods:
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()


if __name__ == "__main__":
    main()
