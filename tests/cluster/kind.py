"""A cluster by kind, on machines with a working Docker engine.

DDP_TEST_KIND_IMAGE names the node image, and so the Kubernetes release; without it kind chooses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.processes import ProcessId
from tests.cluster.state import Instance, create

IMAGE_VARIABLE = "DDP_TEST_KIND_IMAGE"


def usable() -> bool:
    """Tell whether kind is installed and a Docker engine answers."""
    if not (shutil.which("kind") and shutil.which("docker")):
        return False
    try:
        answer = subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


class KindCluster:
    """A running kind cluster."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of a user who may do everything."""
        return self._instance.folder / "admin.kubeconfig"

    def images(self) -> set[str]:
        """Return the full names of the images that pods can use."""
        listed = json.loads(self._in_node("crictl", "images", "-o", "json"))
        return {tag for image in listed["images"] for tag in image["repoTags"]}

    def load_image(self, archive: Path) -> None:
        """Load a docker-archive."""
        name = cluster_name(self._instance.name)
        _run("kind", "load", "image-archive", str(archive), "--name", name)

    def tag_image(self, name: str, *, as_name: str) -> None:
        """Let pods use the loaded image ``name`` also under another full name."""
        self._in_node("ctr", "-n", "k8s.io", "images", "tag", "--force", name, as_name)

    def remove_image(self, name: str) -> None:
        """Take an image's name away, and its content unless something else uses it."""
        self._in_node("ctr", "-n", "k8s.io", "images", "rm", name)

    def _in_node(self, *words: str) -> str:
        node = f"{cluster_name(self._instance.name)}-control-plane"
        return _run("docker", "exec", node, *words)

    def healthy(self) -> bool:
        """Tell whether the API server answers."""
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), "get", "--raw", "/readyz"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def cluster_name(name: str) -> str:
    """Return what kind calls the instance ``name``."""
    return f"ddp-test-{name}"


def start(name: str, *, owner: ProcessId | None) -> KindCluster:
    """Create a kind cluster that stays until it is removed by name, or its owner ends.

    After a failure, the caller removes what exists.
    """
    instance = create(name, "kind", owner=owner, ports=0)
    running = KindCluster(instance)
    image = os.environ.get(IMAGE_VARIABLE)
    _run(
        *("kind", "create", "cluster", "--name", cluster_name(name), "--wait", "120s"),
        *("--kubeconfig", str(running.kubeconfig)),
        *(("--image", image) if image else ()),
    )
    return running


def delete_kind_cluster(name: str) -> None:
    """Delete the kind cluster of the instance ``name``; none there is fine."""
    _run("kind", "delete", "cluster", "--name", cluster_name(name))


def _run(*words: str) -> str:
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode:
        last = result.stderr.strip().splitlines()[-1:] or ["failed"]
        raise ClusterError(f"{' '.join(words[:4])}: {last[0]}")
    return result.stdout
