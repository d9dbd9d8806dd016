"""The installed operator, namespaces and storage that the tests use."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cluster import Cluster, ClusterUnavailableError, cluster
from tests.cluster.node import Node
from tests.cluster.preparation import images
from tests.e2e.jobs import TRAINER_IMAGE
from tests.e2e.kubectl import Kubectl, wait_for

REPOSITORY: Final = Path(__file__).resolve().parents[2]
OPERATOR_NAMESPACE: Final = "ddp-operator"
_OPERATOR: Final = ("--selector", "ddp-operator.io/component=operator")
_VOLUMES_PARENT: Final = "/var/tmp"
"""On the node: its folders outlive pods."""


@contextmanager
def cluster_with_images() -> Iterator[Cluster]:
    """A cluster that has the images of this checkout.

    Raises ClusterUnavailableError, with the reason, when this machine can have none.
    """
    with cluster() as running:
        for source in images.ALL:
            images.load(images.find(source), running)
        yield running


@contextmanager
def node_with_images() -> Iterator[Node]:
    """The same, but only where the processes of its node can be killed.

    Raises ClusterUnavailableError, with the reason, when this machine can have none.
    """
    with cluster_with_images() as running:
        if not isinstance(running, Node):
            raise ClusterUnavailableError("only the processes of a bare node can be killed")
        yield running


def install_operator(kubectl: Kubectl) -> None:
    """Install from the manifests, or upgrade to today's image; return when it is ready."""
    operator = kubectl.within(OPERATOR_NAMESPACE)
    known = operator.attempt("get", "deployment", "ddp-operator").returncode == 0
    kubectl.run("apply", "--kustomize", str(REPOSITORY / "manifests/install"))
    if known:  # the same tag may mean another image now
        operator.run("rollout", "restart", "deployment/ddp-operator")
    operator.run("rollout", "status", "deployment/ddp-operator", "--timeout=80s")


def operator_pods(kubectl: Kubectl) -> list[Any]:
    """The operator's pods, those that end included."""
    return kubectl.within(OPERATOR_NAMESPACE).items("pods", *_OPERATOR)


def operator_leader(kubectl: Kubectl) -> str:
    """The name of the operator's pod that holds the lease; the holder's identity begins with it."""
    lease = kubectl.within(OPERATOR_NAMESPACE).get("lease", "ddp-operator")
    holder: str = lease["spec"].get("holderIdentity") or ""
    return holder.rpartition("_")[0]


def crashes(kubectl: Kubectl) -> dict[str, Any]:
    """How containers of the operator's pods ended that are restarted since, by pod."""
    return {
        pod["metadata"]["name"]: status["lastState"]
        for pod in operator_pods(kubectl)
        for status in pod["status"].get("containerStatuses", ())
        if status["restartCount"]
    }


@dataclass
class Environment:
    """A cluster with the operator, and all that tests have made in it so far."""

    kubectl: Kubectl
    name: str = field(default_factory=lambda: f"e2e-{uuid.uuid4().hex[:6]}")
    namespaces: list[str] = field(default_factory=list)
    known_crashes: dict[str, Any] = field(default_factory=dict)
    _volumes: set[str] = field(default_factory=set)

    def new_namespace(self) -> Kubectl:
        """Make a namespace that admits only pods of the restricted standard."""
        name = f"{self.name}-{len(self.namespaces)}"
        self._make_namespace(name, {"pod-security.kubernetes.io/enforce": "restricted"})
        self.namespaces.append(name)
        return self.kubectl.within(name)

    def delete_namespace(self, kubectl: Kubectl) -> None:
        """Begin to delete a namespace with all that is in it."""
        self.kubectl.run("delete", "namespace", kubectl.namespace, "--wait=false")

    def make_claim(self, kubectl: Kubectl, name: str) -> str:
        """Make a claim that all pods of a namespace can mount, and a volume that backs it."""
        self.make_volume(kubectl, claim=name)
        spec = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
        return name

    def read_volume(self, kubectl: Kubectl, *, claim: str, file: str) -> str:
        """Return the content of a file in the volume of a claim."""
        path = str(self.volume_path(kubectl, claim) / file)
        return self._storage.run("exec", "storage", "--", "cat", path)

    def volume_path(self, kubectl: Kubectl, claim: str) -> Path:
        """The folder on the node that a claim's volume is; a bare node's folders are this
        machine's.
        """
        return Path(_VOLUMES_PARENT, self.name, f"{kubectl.namespace}-{claim}")

    def make_volume(self, kubectl: Kubectl, *, claim: str) -> None:
        """Make the volume that a claim of a namespace will be bound to."""
        name = f"{kubectl.namespace}-{claim}"
        path = str(self.volume_path(kubectl, claim))
        # Pods run as any user: all of them may write, as in /tmp.
        self._storage.run("exec", "storage", "--", "mkdir", "-p", "-m", "1777", path)
        spec = {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "storageClassName": "",
            "hostPath": {"path": path, "type": "Directory"},
            "claimRef": {"namespace": kubectl.namespace, "name": claim},
            "persistentVolumeReclaimPolicy": "Retain",
        }
        kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
        self._volumes.add(name)

    @property
    def _storage(self) -> Kubectl:
        return self.kubectl.within(f"{self.name}-storage")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the operator, which stays, and have storage for the length of the block."""
        install_operator(self.kubectl)
        with self._storage_running():
            yield

    @contextmanager
    def _storage_running(self) -> Iterator[None]:
        """Run a pod that makes folders on the node, wherever that is; remove them at the end."""
        self._make_namespace(self._storage.namespace, {})
        self._storage.apply(_storage_pod())
        self._storage.run("wait", "--for=condition=Ready", "pod/storage", "--timeout=80s")
        try:
            yield
        finally:
            if self._volumes:
                self.kubectl.run(
                    "delete", "persistentvolume", "--wait=false", *sorted(self._volumes)
                )
            self.wait_until_namespaces_are_gone()
            path = f"{_VOLUMES_PARENT}/{self.name}"
            self._storage.run("exec", "storage", "--", "rm", "-rf", path)
            self.kubectl.run("delete", "namespace", self._storage.namespace, "--wait=false")

    def _make_namespace(self, name: str, labels: dict[str, str]) -> None:
        metadata = {"name": name, "labels": labels}
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        # Until its account is there, a new namespace takes no pods.
        account = self.kubectl.within(name)
        wait_for(
            lambda: account.attempt("get", "serviceaccount", "default").returncode == 0,
            what=f"service account of namespace {name}",
        )

    def wait_until_namespaces_are_gone(self) -> None:
        """Wait until all namespaces that tests deleted are gone."""

        def left() -> list[str]:
            existing = self.kubectl.items("namespaces")
            names = {namespace["metadata"]["name"] for namespace in existing}
            return [name for name in self.namespaces if name in names]

        wait_for(lambda: not left(), what="deletion of namespaces", describe=left)


def _storage_pod() -> dict[str, Any]:
    container = {
        "name": "storage",
        "image": TRAINER_IMAGE,
        "command": ["sleep", "infinity"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "node", "mountPath": _VOLUMES_PARENT}],
    }
    volume = {"name": "node", "hostPath": {"path": _VOLUMES_PARENT}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "storage"},
        "spec": {
            "containers": [container],
            "volumes": [volume],
            "terminationGracePeriodSeconds": 0,
        },
    }
