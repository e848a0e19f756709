"""deploy/kubernetes: kubectl renders valid objects, and their references resolve.

Rendered by Debian's kubectl 1.20 and, where the machine has one, by its own.
"""

import json
import re
import sys
import unittest
from pathlib import Path

try:
    import jsonschema
    import kubernetes_validate
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}: run tools/setup.sh --tests")
    sys.exit(0)

import manifests
from manifests import CLUSTERS, FOLDERS, matches, pod_template, workloads

HERE = Path(__file__).parent
# The oldest that kubernetes-validate has schemas for, and one that clouds offer today.
KUBERNETES_VERSIONS = ("1.25", "1.34")
# Secrets that users (docs/operations.md) or cert-manager create.
TLS_SECRETS = {f"starling-{role}-tls" for role in ("coordinator", "shard", "worker", "client")}


def objects_of(folder):
    return manifests.render(manifests.debian_kubectl() or manifests.current_kubectl(), folder)


def everything():
    """(folder, object) for all objects of all folders."""
    return [(folder, document) for folder in FOLDERS for document in objects_of(folder).values()]


def containers(document):
    return pod_template(document)["spec"]["containers"]


def port_names(container):
    return {port["name"]: port["containerPort"] for port in container.get("ports", [])}


def grace_seconds(document):
    return pod_template(document)["spec"]["terminationGracePeriodSeconds"]


def drain_seconds(document):
    """--drain-timeout, as the only container has it."""
    (container,) = containers(document)
    (value,) = [
        argument.split("=")[1]
        for argument in container["args"]
        if argument.startswith("--drain-timeout=")
    ]
    return int(value[:-1]) * {"s": 1, "m": 60}[value[-1]]


class Rendering(unittest.TestCase):
    def test_every_folder_renders_the_same_with_every_kubectl(self):
        kubectls = {manifests.debian_kubectl(), manifests.current_kubectl()} - {None}
        for folder in FOLDERS:
            with self.subTest(folder):
                first, *others = [manifests.render(kubectl, folder) for kubectl in sorted(kubectls)]
                self.assertTrue(first)
                for other in others:
                    self.assertEqual(first, other)

    def test_no_folder_was_forgotten(self):
        there = {
            str(path.parent.relative_to(manifests.copy()))
            for path in manifests.copy().rglob("kustomization.yaml")
        }
        self.assertEqual(there, set(FOLDERS))

    def test_all_is_in_one_namespace(self):
        for folder, document in everything():
            if document["kind"] != "Namespace":
                self.assertEqual(
                    document["metadata"].get("namespace"), "starling", (folder, document)
                )


class Schemas(unittest.TestCase):
    custom = yaml.safe_load((HERE / "custom_resources.yaml").read_text())

    def validate(self, document, version):
        if document["kind"] in self.custom:
            jsonschema.Draft202012Validator(self.custom[document["kind"]]).validate(document)
        else:
            kubernetes_validate.validate(document, version, strict=True)

    def test_valid_for_two_versions(self):
        different = {
            json.dumps(document, sort_keys=True): (folder, document)
            for folder, document in everything()
        }
        for version in KUBERNETES_VERSIONS:
            for folder, document in different.values():
                with self.subTest(
                    f"{version} {folder} {document['kind']} {document['metadata']['name']}"
                ):
                    self.validate(document, version)

    def test_a_misspelt_field_is_found(self):
        worker = objects_of("base")["Deployment", "starling-worker"]
        monitor = objects_of("service-monitor")["ServiceMonitor", "starling"]
        for document, error in (
            (worker, kubernetes_validate.ValidationError),
            (monitor, jsonschema.ValidationError),
        ):
            broken = yaml.safe_load(yaml.safe_dump(document))
            broken["spec"]["selektor"] = broken["spec"].pop("selector")
            for version in KUBERNETES_VERSIONS:
                with self.assertRaises(error):
                    self.validate(broken, version)


class Connections(unittest.TestCase):
    """Selectors match labels; referenced ports, volumes and mounts exist."""

    def pods(self, folder):
        return [pod_template(document) for document in workloads(objects_of(folder))]

    def test_a_workload_selects_its_own_pods_and_no_others(self):
        for folder in CLUSTERS:
            for document in workloads(objects_of(folder)):
                chosen = [
                    pod
                    for pod in self.pods(folder)
                    if matches(document["spec"]["selector"], pod["metadata"]["labels"])
                ]
                self.assertEqual(chosen, [pod_template(document)], document["metadata"]["name"])

    def test_a_service_selects_one_workload_that_has_its_ports(self):
        for folder in CLUSTERS:
            for (kind, name), document in objects_of(folder).items():
                if kind != "Service":
                    continue
                chosen = [
                    pod
                    for pod in self.pods(folder)
                    if matches(document["spec"]["selector"], pod["metadata"]["labels"])
                ]
                self.assertEqual(len(chosen), 1, name)
                ports = port_names(chosen[0]["spec"]["containers"][0])
                for port in document["spec"]["ports"]:
                    self.assertEqual(ports.get(port["targetPort"]), port["port"], name)

    def test_a_stateful_set_has_its_headless_service(self):
        for folder in CLUSTERS:
            objects = objects_of(folder)
            for document in workloads(objects):
                if document["kind"] == "StatefulSet":
                    service = objects["Service", document["spec"]["serviceName"]]
                    self.assertEqual(service["spec"]["clusterIP"], "None")
                    self.assertTrue(
                        matches(
                            service["spec"]["selector"],
                            pod_template(document)["metadata"]["labels"],
                        )
                    )

    def test_budgets_and_spreads_choose_the_shards(self):
        for folder in CLUSTERS:
            objects = objects_of(folder)
            shard = objects["StatefulSet", "starling-shard"]
            labels = pod_template(shard)["metadata"]["labels"]
            budget = objects["PodDisruptionBudget", "starling-shards"]["spec"]
            self.assertEqual(budget["maxUnavailable"], 1)
            self.assertTrue(matches(budget["selector"], labels))
            (spread,) = pod_template(shard)["spec"]["topologySpreadConstraints"]
            self.assertTrue(matches(spread["labelSelector"], labels))
            self.assertEqual(shard["spec"]["podManagementPolicy"], "Parallel")
            for kind, name in (
                ("StatefulSet", "starling-coordinator"),
                ("Deployment", "starling-worker"),
            ):
                other = pod_template(objects[kind, name])["metadata"]["labels"]
                self.assertFalse(matches(budget["selector"], other), name)

    def test_probes_ask_the_admin_port(self):
        for folder in CLUSTERS:
            for document in workloads(objects_of(folder)):
                for container in containers(document):
                    for probe, path in (
                        ("startupProbe", "/healthz"),
                        ("livenessProbe", "/healthz"),
                        ("readinessProbe", "/readyz"),
                    ):
                        get = container[probe]["httpGet"]
                        self.assertEqual((get["path"], get["port"]), (path, "admin"))
                    self.assertIn("admin", port_names(container))

    def test_ports_are_those_of_the_flags(self):
        for folder in CLUSTERS:
            for document in workloads(objects_of(folder)):
                for container in containers(document):
                    flags = dict(argument.split("=", 1) for argument in container["args"])
                    ports = port_names(container)
                    self.assertEqual(flags["--listen"], f"0.0.0.0:{ports['rpc']}")
                    self.assertEqual(flags["--admin-address"], f"0.0.0.0:{ports['admin']}")
                    self.assertTrue(flags["--advertise-address"].endswith(f":{ports['rpc']}"))

    def test_daemons_find_the_coordinator_and_advertise_names_that_exist(self):
        for folder in CLUSTERS:
            objects = objects_of(folder)
            for document in workloads(objects):
                flags = dict(argument.split("=", 1) for argument in containers(document)[0]["args"])
                if "--coordinator" in flags:
                    host, port = flags["--coordinator"].split(":")
                    self.assertIn(
                        int(port), [p["port"] for p in objects["Service", host]["spec"]["ports"]]
                    )
            shard = objects["StatefulSet", "starling-shard"]
            self.assertIn(
                f"--advertise-address=$(POD_NAME).{shard['spec']['serviceName']}."
                "$(POD_NAMESPACE).svc:7071",
                containers(shard)[0]["args"],
            )

    def test_variables_in_arguments_are_set(self):
        for folder in (*CLUSTERS, "example-job"):
            for document in workloads(objects_of(folder)):
                for container in containers(document):
                    names = {variable["name"] for variable in container.get("env", [])}
                    used = re.findall(r"\$\((\w+)\)", " ".join(container["args"]))
                    self.assertLessEqual(set(used), names)
                    for variable in container.get("env", []):
                        resource = variable.get("valueFrom", {}).get("resourceFieldRef")
                        if resource:
                            self.assertEqual(resource["containerName"], container["name"])
                            self.assertIn("cpu", container["resources"]["limits"])

    def test_volumes_are_there(self):
        for folder in (*CLUSTERS, "example-job"):
            objects = objects_of(folder)
            for document in workloads(objects):
                spec = pod_template(document)["spec"]
                volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
                claims = {
                    claim["metadata"]["name"]
                    for claim in document["spec"].get("volumeClaimTemplates", [])
                }
                for container in spec["containers"]:
                    mounted = {mount["name"] for mount in container["volumeMounts"]}
                    self.assertEqual(mounted, set(volumes) | claims)
                for volume in volumes.values():
                    if "secret" in volume:
                        self.assertIn(volume["secret"]["secretName"], TLS_SECRETS)
                    elif "configMap" in volume:
                        self.assertIn(("ConfigMap", volume["configMap"]["name"]), objects)
                    elif "persistentVolumeClaim" in volume:
                        self.assertIn(
                            ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]),
                            objects,
                        )

    def test_each_role_mounts_its_own_certificate(self):
        for folder in CLUSTERS:
            for document in workloads(objects_of(folder)):
                component = pod_template(document)["metadata"]["labels"][
                    "app.kubernetes.io/component"
                ]
                volume = {v["name"]: v for v in pod_template(document)["spec"]["volumes"]}["tls"]
                self.assertEqual(volume["secret"]["secretName"], f"starling-{component}-tls")


class Security(unittest.TestCase):
    """What the "restricted" standard of pod security requires, and what we promise beyond it."""

    def test_pods_are_restricted(self):
        for folder in (*CLUSTERS, "example-job"):
            for document in workloads(objects_of(folder)):
                spec = pod_template(document)["spec"]
                with self.subTest(f"{folder} {document['metadata']['name']}"):
                    self.assertIs(spec["enableServiceLinks"], False)
                    self.assertIs(spec["automountServiceAccountToken"], False)
                    self.assertIs(spec["securityContext"]["runAsNonRoot"], True)
                    self.assertEqual(spec["securityContext"]["runAsUser"], 10001)
                    self.assertEqual(spec["securityContext"]["fsGroup"], 10001)
                    self.assertEqual(
                        spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault"
                    )
                    for key in ("hostNetwork", "hostPID", "hostIPC"):
                        self.assertNotIn(key, spec)
                    for container in spec["containers"]:
                        context = container["securityContext"]
                        self.assertIs(context["readOnlyRootFilesystem"], True)
                        self.assertIs(context["allowPrivilegeEscalation"], False)
                        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                        for kind in ("requests", "limits"):
                            self.assertLessEqual(
                                {"cpu", "memory"}, set(container["resources"][kind])
                            )

    def test_secrets_are_files_that_only_the_group_reads(self):
        for folder in (*CLUSTERS, "example-job"):
            for document in workloads(objects_of(folder)):
                for volume in pod_template(document)["spec"].get("volumes", []):
                    if "secret" in volume:
                        self.assertEqual(volume["secret"]["defaultMode"], 0o440)
                for container in containers(document):
                    for variable in container.get("env", []):
                        self.assertNotIn("secretKeyRef", variable.get("valueFrom", {}))
                    for mount in container["volumeMounts"]:
                        # Kubernetes never updates a file that is mounted by subPath.
                        self.assertNotIn("subPath", mount)

    def test_nothing_of_a_cluster_runs_without_tls(self):
        for folder in CLUSTERS:
            for document in workloads(objects_of(folder)):
                arguments = " ".join(containers(document)[0]["args"])
                for flag in ("--tls-cert=", "--tls-key=", "--tls-ca=", "--cluster=starling"):
                    self.assertIn(flag, arguments)
                self.assertNotIn("--insecure", arguments)


class NetworkPolicies(unittest.TestCase):
    def setUp(self):
        self.objects = objects_of("overlays/with-network-policy")
        self.policies = {
            name: document["spec"]
            for (kind, name), document in self.objects.items()
            if kind == "NetworkPolicy"
        }
        self.pods = [pod_template(document) for document in workloads(self.objects)]
        self.client = pod_template(objects_of("example-job")["Job", "example-training"])

    def test_nobody_by_default(self):
        denied = self.policies["default-deny"]
        self.assertEqual(denied, {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})

    def test_every_other_policy_is_for_all_of_our_pods(self):
        for name, policy in self.policies.items():
            for pod in (*self.pods, self.client):
                self.assertTrue(matches(policy["podSelector"], pod["metadata"]["labels"]), name)

    def test_rpc_ports_among_ourselves(self):
        (rule,) = self.policies["starling-rpc-in"]["ingress"]
        self.assertEqual([port["port"] for port in rule["ports"]], ["rpc"])
        (out,) = self.policies["starling-rpc-out"]["egress"]
        numbers = {port_names(pod["spec"]["containers"][0])["rpc"] for pod in self.pods}
        self.assertEqual({port["port"] for port in out["ports"]}, numbers)
        for peer in (*rule["from"], *out["to"]):
            self.assertEqual(set(peer), {"podSelector"})  # of this namespace only
            for pod in (*self.pods, self.client):
                self.assertTrue(matches(peer["podSelector"], pod["metadata"]["labels"]))

    def test_the_admin_port_for_monitoring_alone(self):
        allowing = [
            (name, rule)
            for name, policy in self.policies.items()
            for rule in policy.get("ingress", [])
            if any(port["port"] == "admin" for port in rule["ports"])
        ]
        self.assertEqual([name for name, _ in allowing], ["starling-admin-in"])
        (peer,) = allowing[0][1]["from"]
        self.assertEqual(
            peer["namespaceSelector"]["matchLabels"], {"kubernetes.io/metadata.name": "monitoring"}
        )
        self.assertEqual(
            peer["podSelector"]["matchLabels"], {"app.kubernetes.io/name": "prometheus"}
        )


class Monitoring(unittest.TestCase):
    def test_every_daemon_is_scraped_once(self):
        objects = objects_of("overlays/with-service-monitor")
        monitor = objects["ServiceMonitor", "starling"]["spec"]
        (endpoint,) = monitor["endpoints"]
        self.assertEqual(endpoint["path"], "/metrics")
        services = [
            document
            for (kind, _), document in objects.items()
            if kind == "Service"
            and matches(monitor["selector"], document["metadata"]["labels"])
            and any(port["name"] == endpoint["port"] for port in document["spec"]["ports"])
        ]
        for document in workloads(objects):
            labels = pod_template(document)["metadata"]["labels"]
            scraping = [s for s in services if matches(s["spec"]["selector"], labels)]
            self.assertEqual(len(scraping), 1, document["metadata"]["name"])


class Certificates(unittest.TestCase):
    def test_one_per_role_in_the_secret_that_is_mounted(self):
        objects = objects_of("overlays/with-cert-manager")
        issuers = {name for (kind, name) in objects if kind == "Issuer"}
        by_secret = {}
        for (kind, _), document in objects.items():
            if kind == "Certificate":
                self.assertIn(document["spec"]["issuerRef"]["name"], issuers)
                by_secret[document["spec"]["secretName"]] = document["spec"]
        self.assertEqual(set(by_secret), TLS_SECRETS | {"starling-ca"})
        for role in ("coordinator", "shard", "worker", "client"):
            spec = by_secret[f"starling-{role}-tls"]
            self.assertEqual(spec["uris"], [f"starling://starling/{role}"])
            self.assertIn("client auth", spec["usages"])
            self.assertEqual("server auth" in spec["usages"], role != "client")


class Overlays(unittest.TestCase):
    def test_workers_and_shards_have_time_to_drain(self):
        source = (manifests.ROOT / "worker" / "worker_main.cc").read_text()
        teardown = int(
            re.search(r"kTeardownDeadline = absl::Milliseconds\((\d+)\)", source).group(1)
        )
        for folder in CLUSTERS:
            objects = objects_of(folder)
            # A shard needs 2 s to say that it leaves, and 5 s to end.
            for key, ends in (
                (("Deployment", "starling-worker"), teardown / 1000),
                (("StatefulSet", "starling-shard"), 7),
            ):
                self.assertGreater(
                    grace_seconds(objects[key]), drain_seconds(objects[key]) + ends, key
                )

    def test_one_coordinator_with_a_claim(self):
        for folder in CLUSTERS:
            spec = objects_of(folder)["StatefulSet", "starling-coordinator"]["spec"]
            self.assertEqual(spec["replicas"], 1)
            (claim,) = spec["volumeClaimTemplates"]
            (mount,) = [
                m
                for m in spec["template"]["spec"]["containers"][0]["volumeMounts"]
                if m["name"] == claim["metadata"]["name"]
            ]
            self.assertIn(
                f"--state={mount['mountPath']}/coordinator",
                spec["template"]["spec"]["containers"][0]["args"],
            )

    def test_coordinator_and_shards_share_the_folder_of_checkpoints(self):
        for folder in CLUSTERS:
            objects = objects_of(folder)
            claim = objects["PersistentVolumeClaim", "starling-checkpoints"]["spec"]
            mode = "ReadWriteOnce" if folder == "overlays/local" else "ReadWriteMany"
            self.assertEqual(claim["accessModes"], [mode])
            for name in ("starling-coordinator", "starling-shard"):
                spec = pod_template(objects["StatefulSet", name])["spec"]
                (container,) = spec["containers"]
                (volume,) = [v for v in spec["volumes"] if v["name"] == "checkpoints"]
                self.assertEqual(
                    volume["persistentVolumeClaim"]["claimName"], "starling-checkpoints"
                )
                (mount,) = [m for m in container["volumeMounts"] if m["name"] == "checkpoints"]
                self.assertIn(f"--checkpoint-root={mount['mountPath']}", container["args"])

    def test_shards_restart_only_when_asked(self):
        for folder in CLUSTERS:
            spec = objects_of(folder)["StatefulSet", "starling-shard"]["spec"]
            self.assertEqual(spec["updateStrategy"], {"type": "OnDelete"})

    def test_gpu(self):
        spec = pod_template(objects_of("overlays/gpu")["Deployment", "starling-worker"])["spec"]
        (container,) = spec["containers"]
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], 1)
        self.assertIn("/dev/shm", [mount["mountPath"] for mount in container["volumeMounts"]])
        self.assertIn("nvidia.com/gpu", [toleration["key"] for toleration in spec["tolerations"]])
        for name in ("starling-coordinator", "starling-shard"):
            other = pod_template(objects_of("overlays/gpu")["StatefulSet", name])["spec"]
            self.assertNotIn("tolerations", other)

    def test_spot_nodes_are_for_workers_alone(self):
        objects = objects_of("overlays/spot")

        def terms(kind, name):
            affinity = pod_template(objects[kind, name])["spec"]["affinity"]["nodeAffinity"]
            return [
                [(e["key"], e["operator"], e["values"]) for e in term["matchExpressions"]]
                for term in affinity["requiredDuringSchedulingIgnoredDuringExecution"][
                    "nodeSelectorTerms"
                ]
            ]

        wanted = [
            (key, values)
            for (key, operator, values), in terms("Deployment", "starling-worker")
            if operator == "In"
        ]
        self.assertEqual(len(wanted), 4)
        for name in ("starling-coordinator", "starling-shard"):
            # One term, so that all of its parts must hold.
            self.assertEqual(
                terms("StatefulSet", name), [[(key, "NotIn", values) for key, values in wanted]]
            )
            self.assertNotIn("tolerations", pod_template(objects["StatefulSet", name])["spec"])

    def test_images_carry_the_release(self):
        source = (manifests.ROOT / "common" / "version" / "version.cc").read_text()
        version = re.search(r'ReleaseVersion\(\) { return "([^"]+)"', source).group(1)
        for folder in (*CLUSTERS, "example-job"):
            for document in workloads(objects_of(folder)):
                for container in containers(document):
                    self.assertRegex(
                        container["image"],
                        rf"^([a-z.]+/)?starling-(server|worker):{re.escape(version)}$",
                    )


if __name__ == "__main__":
    if manifests.debian_kubectl() is None:
        print("SKIPPED: no kubectl 1.20: run tools/setup.sh --tests")
    if manifests.debian_kubectl() or manifests.current_kubectl():
        unittest.main()
