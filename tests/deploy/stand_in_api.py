"""A stand-in for Kubernetes' API server, enough for the verbs of kubectl that our documents use.

    with StandInApi() as api:
        subprocess.run(["kubectl", "--kubeconfig", api.kubeconfig, "apply", "-k", ...])
        api.get("deployments", "starling", "starling-worker")

It stores what is created, lists by label, gives workloads their pods at once, all of them running
and ready, and completes Jobs. So a disruption budget forbids an eviction only if it forbids all,
and the test looks at which budgets each eviction was subject to (`evicted`). It has no streams into
pods (port-forward, exec, logs). Thread-safe.
"""

import base64
import copy
import itertools
import json
import os
import tempfile
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Group and version -> (plural, kind, namespaced).
RESOURCES = {
    "v1": [
        ("namespaces", "Namespace", False),
        ("nodes", "Node", False),
        ("pods", "Pod", True),
        ("services", "Service", True),
        ("secrets", "Secret", True),
        ("configmaps", "ConfigMap", True),
        ("persistentvolumeclaims", "PersistentVolumeClaim", True),
    ],
    "apps/v1": [
        ("deployments", "Deployment", True),
        ("statefulsets", "StatefulSet", True),
        ("daemonsets", "DaemonSet", True),
    ],
    "batch/v1": [("jobs", "Job", True)],
    "policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget", True)],
    "networking.k8s.io/v1": [("networkpolicies", "NetworkPolicy", True)],
    "cert-manager.io/v1": [("issuers", "Issuer", True), ("certificates", "Certificate", True)],
    "monitoring.coreos.com/v1": [("servicemonitors", "ServiceMonitor", True)],
}
SUBRESOURCES = {"pods": ["eviction"], "deployments": ["scale"], "statefulsets": ["scale"]}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
KINDS = {plural: (version, kind) for version, rows in RESOURCES.items() for plural, kind, _ in rows}
NODE = "node-1"


class Refused(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code, self.reason = code, reason


def chosen(selector, labels):
    """Whether a labelSelector, as the text k=v,..., matches."""
    pairs = [pair.replace("==", "=").split("=", 1) for pair in selector.split(",") if pair]
    return all(labels.get(key) == value for key, value in pairs)


def merged(old, patch):
    """RFC 7386, to which kubectl's patches of our objects amount."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif not key.startswith("$"):
            result[key] = merged(result.get(key), value)
    return result


class Store:
    """Objects by (plural, namespace, name). All calls are made under one lock."""

    def __init__(self):
        self.objects = {}
        self.numbers = itertools.count(1)
        self.evicted = []  # names of pods, each with the names of the budgets that select it
        self.lock = threading.RLock()
        self.put("nodes", "", {"metadata": {"name": NODE}, "spec": {}, "status": {}})

    def put(self, plural, namespace, document):
        version, kind = KINDS[plural]
        number = next(self.numbers)
        document = {**copy.deepcopy(document), "apiVersion": version, "kind": kind}
        metadata = document["metadata"]
        if namespace:
            metadata["namespace"] = namespace
        metadata.setdefault("uid", f"00000000-0000-4000-8000-{number:012}")
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        metadata["resourceVersion"] = str(number)
        self.objects[plural, namespace, metadata["name"]] = document
        self.reconcile(plural, namespace, document)
        return document

    def get(self, plural, namespace, name):
        if (plural, namespace, name) not in self.objects:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        return self.objects[plural, namespace, name]

    def list(self, plural, namespace, query):
        found = [
            document
            for (kind, where, _), document in sorted(self.objects.items())
            if kind == plural and namespace in ("", where)
        ]
        for field in filter(None, query.get("fieldSelector", "").split(",")):
            path, value = field.replace("==", "=").split("=", 1)
            keys = path.split(".")
            found = [d for d in found if d.get(keys[0], {}).get(keys[1]) == value]
        return [
            d
            for d in found
            if chosen(query.get("labelSelector", ""), d["metadata"].get("labels", {}))
        ]

    def delete(self, plural, namespace, name):
        document = self.get(plural, namespace, name)
        del self.objects[plural, namespace, name]
        for owned in [
            key
            for key, d in self.objects.items()
            if any(
                o["uid"] == document["metadata"]["uid"]
                for o in d["metadata"].get("ownerReferences", [])
            )
        ]:
            del self.objects[owned]
        for owner in document["metadata"].get("ownerReferences", []):
            where = (KIND_PLURALS[owner["kind"]], namespace, owner["name"])
            if where in self.objects:
                self.reconcile(where[0], namespace, self.objects[where])
        return document

    def evict(self, namespace, name):
        labels = self.get("pods", namespace, name)["metadata"]["labels"]
        budgets = [
            document
            for document in self.list("poddisruptionbudgets", namespace, {})
            if document["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ]
        if any(budget["spec"].get("maxUnavailable") == 0 for budget in budgets):
            raise Refused(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
            )
        self.evicted.append((name, [budget["metadata"]["name"] for budget in budgets]))
        self.delete("pods", namespace, name)

    def reconcile(self, plural, namespace, document):
        """Does what the controllers do, at once."""
        if plural not in ("deployments", "statefulsets", "jobs"):
            return
        metadata, spec = document["metadata"], document["spec"]
        wanted = spec.get("replicas", 1)
        owner = {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        mine = [
            d
            for d in self.list("pods", namespace, {})
            if d["metadata"]["ownerReferences"][0]["uid"] == metadata["uid"]
        ]
        names = [d["metadata"]["name"] for d in mine]
        for name in names[wanted:]:
            del self.objects["pods", namespace, name]
        for i in itertools.count():
            if len(names) >= wanted:
                break
            name = (
                f"{metadata['name']}-{i}"
                if plural == "statefulsets"
                else f"{metadata['name']}-{next(self.numbers)}"
            )
            if name in names:
                continue
            names.append(name)
            template = copy.deepcopy(spec["template"])
            self.put(
                "pods",
                namespace,
                {
                    "metadata": {**template["metadata"], "name": name, "ownerReferences": [owner]},
                    "spec": {**template["spec"], "nodeName": NODE},
                    "status": {
                        "phase": "Running",
                        "conditions": [{"type": "Ready", "status": "True"}],
                    },
                },
            )
        if plural == "statefulsets":
            spec.setdefault("updateStrategy", {"type": "RollingUpdate"})
        generation = metadata.setdefault("generation", 1)
        document["status"] = {
            "observedGeneration": generation,
            "replicas": wanted,
            "readyReplicas": wanted,
            "updatedReplicas": wanted,
            "currentReplicas": wanted,
            "availableReplicas": wanted,
            "currentRevision": "1",
            "updateRevision": "1",
        }
        if plural == "jobs":
            document["status"] = {
                "succeeded": 1,
                "conditions": [{"type": "Complete", "status": "True"}],
            }


KIND_PLURALS = {kind: plural for plural, (_, kind) in KINDS.items()}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, body, code=200, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self):
        size = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(size)) if size else {}

    def serve(self):
        url = urllib.parse.urlsplit(self.path)
        query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
        parts = [part for part in url.path.split("/") if part]
        body = self.body()
        self.server.requests.append((self.command, url.path))
        try:
            if self.discovery(parts):
                return
            with self.server.store.lock:
                answer = self.resource(parts, query, body)
            self.reply(answer, 201 if self.command == "POST" else 200)
        except Refused as refused:
            self.reply(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "code": refused.code,
                    "reason": refused.reason,
                    "message": str(refused),
                },
                refused.code,
            )

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

    def discovery(self, parts):
        if parts == ["version"]:
            self.reply({"major": "1", "minor": "25", "gitVersion": "v1.25.0"})
        elif parts == ["api"]:
            self.reply({"kind": "APIVersions", "versions": ["v1"]})
        elif parts == ["apis"]:
            groups = [
                {"name": version.split("/")[0], "versions": [v], "preferredVersion": v}
                for version in RESOURCES
                if "/" in version
                for v in [{"groupVersion": version, "version": version.split("/")[1]}]
            ]
            self.reply({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif parts[0] in ("api", "apis") and "/".join(parts[1:]) in RESOURCES:
            version = "/".join(parts[1:])
            rows = [
                {
                    "name": plural,
                    "singularName": kind.lower(),
                    "kind": kind,
                    "namespaced": namespaced,
                    "verbs": VERBS,
                }
                for plural, kind, namespaced in RESOURCES[version]
            ]
            rows += [
                {
                    "name": f"{plural}/{sub}",
                    "singularName": "",
                    "namespaced": True,
                    "verbs": VERBS,
                    "kind": "Eviction" if sub == "eviction" else "Scale",
                    "group": "policy" if sub == "eviction" else "autoscaling",
                    "version": "v1",
                }
                for plural, _, _ in RESOURCES[version]
                for sub in SUBRESOURCES.get(plural, [])
            ]
            self.reply(
                {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": version,
                    "resources": rows,
                }
            )
        elif parts == ["openapi", "v2"]:
            # No schemas, so that kubectl does not validate: manifests_test.py does.
            self.reply(b"", kind="application/octet-stream")
        else:
            return False
        return True

    def resource(self, parts, query, body):
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if not rest:
            raise Refused(404, "NotFound", "the stand-in has no /" + "/".join(parts))
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, sub = (*rest, None, None)[:3]
        if plural not in KINDS:
            raise Refused(404, "NotFound", f"no resource {plural}")
        if sub == "scale":
            return self.scale(plural, namespace, name, body)
        if sub == "eviction":
            self.server.store.evict(namespace, name)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if sub is not None:
            raise Refused(404, "NotFound", f"the stand-in has no {sub}")
        return (
            self.one(plural, namespace, name, body)
            if name
            else self.many(plural, namespace, query, body)
        )

    def many(self, plural, namespace, query, body):
        store = self.server.store
        version, kind = KINDS[plural]
        if self.command == "POST":
            if (plural, namespace, body["metadata"]["name"]) in store.objects:
                raise Refused(
                    409, "AlreadyExists", f'{plural} "{body["metadata"]["name"]}" already exists'
                )
            if namespace:
                store.get("namespaces", "", namespace)
            if "stringData" in body:
                data = {
                    k: base64.b64encode(v.encode()).decode()
                    for k, v in body.pop("stringData").items()
                }
                body["data"] = {**body.get("data", {}), **data}
            return store.put(plural, namespace, body)
        if query.get("watch") in ("true", "1"):
            return b""  # ends at once, without events: existing objects were listed before
        return {
            "kind": kind + "List",
            "apiVersion": version,
            "metadata": {"resourceVersion": "1"},
            "items": store.list(plural, namespace, query),
        }

    def one(self, plural, namespace, name, body):
        store = self.server.store
        if self.command == "GET":
            return store.get(plural, namespace, name)
        if self.command == "DELETE":
            return store.delete(plural, namespace, name)
        old = store.get(plural, namespace, name)
        return store.put(plural, namespace, merged(old, body) if self.command == "PATCH" else body)

    def scale(self, plural, namespace, name, body):
        store = self.server.store
        document = store.get(plural, namespace, name)
        if self.command in ("PUT", "PATCH"):
            wanted = {"spec": {"replicas": body["spec"]["replicas"]}}
            document = store.put(plural, namespace, merged(document, wanted))
        metadata = {
            key: document["metadata"][key] for key in ("name", "namespace", "resourceVersion")
        }
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": metadata,
            "spec": {"replicas": document["spec"]["replicas"]},
            "status": {"replicas": document["spec"]["replicas"]},
        }


class StandInApi:
    """Serves on a free port from entry to exit."""

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.store = Store()
        self.server.requests = []
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.kubeconfig = Path(self.folder.name) / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "stand-in",
                    "clusters": [
                        {
                            "name": "stand-in",
                            "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"},
                        }
                    ],
                    "contexts": [
                        {"name": "stand-in", "context": {"cluster": "stand-in", "user": "nobody"}}
                    ],
                    "users": [{"name": "nobody", "user": {}}],
                }
            )
        )
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.folder.cleanup()

    def evicted(self):
        """Names of evicted pods, each with the names of the budgets that select it."""
        with self.server.store.lock:
            return list(self.server.store.evicted)

    def get(self, plural, namespace, name):
        """The current object, or None."""
        with self.server.store.lock:
            return copy.deepcopy(self.server.store.objects.get((plural, namespace, name)))

    def names(self, plural, namespace):
        with self.server.store.lock:
            return sorted(
                name
                for kind, where, name in self.server.store.objects
                if (kind, where) == (plural, namespace)
            )
