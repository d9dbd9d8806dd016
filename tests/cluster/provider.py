"""Which cluster this machine gets: a given one, kind's, or a bare node; all used the same way."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from tests.cluster import kind, node
from tests.cluster.cache import exclusive
from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.preparation import binaries
from tests.cluster.processes import ProcessId
from tests.cluster.state import Instance, instances, state_root
from tests.cluster.teardown import remove, remove_named, sweep

Provider = Literal["existing", "kind", "node"]

# Names a running cluster to use instead of starting one.
KUBECONFIG_VARIABLE = "DDP_TEST_KUBECONFIG"


class Cluster(Protocol):
    """A Kubernetes that runs pods."""

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of a user who may do everything that tests do."""

    def images(self) -> set[str]:
        """Return the full names (``docker.io/library/…``) of the images that pods can use."""

    def load_image(self, archive: Path) -> None:
        """Make the images of a docker-archive usable by pods."""

    def tag_image(self, name: str, *, as_name: str) -> None:
        """Let pods use the loaded image ``name`` also under another full name."""

    def remove_image(self, name: str) -> None:
        """Take an image's name away, and its content unless something else uses it."""

    def healthy(self) -> bool:
        """Tell whether pods can run right now."""


@dataclass(frozen=True)
class ExistingCluster:
    """A cluster that somebody else runs; its nodes must have the images already."""

    kubeconfig: Path

    def images(self) -> set[str]:
        """Return the full names of the images that all nodes report; a new one takes a minute.

        Raises ClusterUnavailableError when the cluster does not answer.
        """
        names = [set().union(*images) for images in self._images_by_node()]
        return set.intersection(*names) if names else set()

    def load_image(self, archive: Path) -> None:
        """Refuse: nothing here reaches the nodes. The message says what their owner can do."""
        repository, _, tag = archive.stem.rpartition("-")
        raise ClusterUnavailableError(
            f"the nodes of {KUBECONFIG_VARIABLE} have no {repository} of this checkout: load "
            f"{archive} on each of them, and tag it docker.io/library/{repository}:{tag} "
            "(they report it within a minute)"
        )

    def tag_image(self, name: str, *, as_name: str) -> None:
        """Refuse, unless the nodes use both names for the same image."""
        both = {name, as_name}
        if not all(any(both <= names for names in images) for images in self._images_by_node()):
            raise ClusterUnavailableError(
                f"the nodes of {KUBECONFIG_VARIABLE} use {as_name} for another image than {name}: "
                "give both names to the latter"
            )

    def remove_image(self, name: str) -> None:
        """Refuse, like `load_image`."""
        raise ClusterUnavailableError(f"cannot remove {name} from another's cluster")

    def healthy(self) -> bool:
        """Trust its owner."""
        return True

    def _images_by_node(self) -> list[list[set[str]]]:
        """Return the names of each image, for each node."""
        command = [binaries.kubectl(), "--kubeconfig", str(self.kubeconfig), "get", "nodes"]
        result = subprocess.run(
            [*command, "--output=json"], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise ClusterUnavailableError(
                f"the cluster of {KUBECONFIG_VARIABLE} does not answer: {result.stderr.strip()}"
            )
        statuses = [node["status"] for node in json.loads(result.stdout)["items"]]
        return [  # an image that lost its last name is still reported
            [set(image["names"] or ()) for image in status.get("images", ())] for status in statuses
        ]


def choose(*, kubeconfig: str | None, kind_usable: bool) -> Provider:
    """Return which kind of cluster to use; a given one first, a bare node last."""
    if kubeconfig:
        return "existing"
    return "kind" if kind_usable else "node"


def up(name: str = "default", *, owner: ProcessId | None = None) -> Cluster:
    """Return the cluster ``name``, started or restarted unless it runs well.

    Raises ClusterUnavailableError, with the reason, when this machine can have none.
    """
    sweep()
    given = os.environ.get(KUBECONFIG_VARIABLE)
    provider = choose(kubeconfig=given, kind_usable=not given and kind.usable())
    if provider == "existing":
        path = Path(given or "")
        if not path.is_file():
            raise ClusterUnavailableError(f"{KUBECONFIG_VARIABLE}={path} is not a file")
        return ExistingCluster(path)
    with exclusive(state_root() / f".{name}.lock", waiting_for=f"start of cluster {name!r}"):
        if instance := _find(name):
            running = _attach(instance)
            if running.healthy():
                return running
            remove(instance)
        try:
            if provider == "kind":
                return kind.start(name, owner=owner)
            return node.start(name, owner=owner)
        except BaseException:
            remove_named(name)
            raise


@contextmanager
def cluster(name: str = "default") -> Iterator[Cluster]:
    """Use a given cluster, or the one that `up` started under ``name``, or start one for the block.

    Raises ClusterUnavailableError, with the reason, when this machine can have none.
    """
    sweep()
    instance = _find(name)
    if os.environ.get(KUBECONFIG_VARIABLE) or (instance is not None and instance.owner is None):
        yield up(name)
        return
    owner = ProcessId.current()
    if instance is not None:  # another process's, which will take it down
        name = _beside(name)
    running = up(name, owner=owner)
    if (started := _find(name)) is None or started.owner != owner:  # by another, at the same time
        name = _beside(name)
        running = up(name, owner=owner)
    try:
        yield running
    finally:
        remove_named(name)


def running(name: str = "default") -> Cluster | None:
    """Return the cluster ``name`` that this machine runs, if it does and it can run pods."""
    instance = _find(name)
    if instance is None or instance.kind == "control-plane":
        return None
    return _attach(instance)


def _beside(name: str) -> str:
    return f"{name}-{secrets.token_hex(3)}"


def _find(name: str) -> Instance | None:
    return next((instance for instance in instances() if instance.name == name), None)


def _attach(instance: Instance) -> Cluster:
    if instance.kind == "control-plane":
        raise ClusterError(f"cluster {instance.name!r} is a control plane without nodes")
    return kind.KindCluster(instance) if instance.kind == "kind" else node.Node(instance)
