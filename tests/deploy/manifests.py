"""Renders deploy/kubernetes with each kubectl at hand.

kustomize refuses links that leave its folder, and in Bazel's tests every file is such a link, so a
copy is rendered.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SOURCE = Path(os.path.abspath(ROOT)) / "deploy" / "kubernetes"

# Every folder that users apply.
FOLDERS = (
    "base",
    "network-policy",
    "service-monitor",
    "cert-manager",
    "example-job",
    "overlays/local",
    "overlays/cpu",
    "overlays/gpu",
    "overlays/spot",
    "overlays/with-network-policy",
    "overlays/with-service-monitor",
    "overlays/with-cert-manager",
)
# The folders that are whole clusters.
CLUSTERS = tuple(folder for folder in FOLDERS if folder == "base" or folder.startswith("overlays/"))


def debian_kubectl():
    """Debian 12's kubectl 1.20, which tools/setup.sh --tests unpacks beside the judges'
    environment."""
    path = Path(sys.executable).parents[2] / "kubectl-1.20" / "kubectl"
    return str(path) if path.exists() else None


def current_kubectl():
    """The machine's own kubectl, if it has one."""
    return shutil.which("kubectl")


@functools.cache
def copy():
    """Copies the manifests to plain files."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))) / "kubernetes"
    shutil.copytree(SOURCE, folder)
    return folder


@functools.cache
def render(kubectl, folder):
    """The objects that `kubectl kustomize FOLDER` prints, by (kind, name)."""
    result = subprocess.run(
        [kubectl, "kustomize", str(copy() / folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if result.returncode != 0:
        raise AssertionError(f"{kubectl} kustomize {folder}: {result.stderr}")
    documents = [
        document for document in yaml.load_all(result.stdout, Loader=yaml.CSafeLoader) if document
    ]
    objects = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(objects) == len(documents), f"{folder}: an object stands there twice"
    return objects


def pod_template(document):
    """The pod template of a workload; None for other objects."""
    if document["kind"] in ("StatefulSet", "Deployment", "Job"):
        return document["spec"]["template"]
    return None


def workloads(objects):
    """Objects that start pods."""
    return [document for document in objects.values() if pod_template(document)]


def matches(selector, labels):
    """Whether a selector, by matchLabels or a Service's plain one, matches the labels."""
    assert "matchExpressions" not in selector, selector
    wanted = (
        selector.get("matchLabels", {}) if "matchLabels" in selector or not selector else selector
    )
    return all(labels.get(key) == value for key, value in wanted.items())
