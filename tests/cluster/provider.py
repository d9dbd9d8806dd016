"""Which cluster this machine gets: a given one, kind's, or a bare node; all used the same way."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from tests.cluster import kind, node
from tests.cluster.cache import exclusive
from tests.cluster.errors import ClusterError, ClusterUnavailableError
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
        """Let pods use the loaded image ``name`` under another full name as well."""

    def remove_image(self, name: str) -> None:
        """Take an image's name away, and its content unless something else uses it."""

    def healthy(self) -> bool:
        """Tell whether pods can run right now."""


@dataclass(frozen=True)
class ExistingCluster:
    """A cluster that somebody else runs; it has to be able to pull the images itself."""

    kubeconfig: Path

    def images(self) -> set[str]:
        """Return nothing: what its nodes hold is not known here."""
        return set()

    def load_image(self, archive: Path) -> None:
        """Refuse: there is no way into another's nodes."""
        raise ClusterUnavailableError(
            f"cannot load {archive.name} into the cluster of {KUBECONFIG_VARIABLE}: "
            "push the images to a registry that it can pull from"
        )

    def tag_image(self, name: str, *, as_name: str) -> None:
        """Refuse, like `load_image`."""
        raise ClusterUnavailableError(f"cannot tag {name} as {as_name} in another's cluster")

    def remove_image(self, name: str) -> None:
        """Refuse, like `load_image`."""
        raise ClusterUnavailableError(f"cannot remove {name} from another's cluster")

    def healthy(self) -> bool:
        """Trust its owner."""
        return True


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
    """Use the cluster that `up` started under ``name``, or one of one's own for a ``with`` block.

    Raises ClusterUnavailableError, with the reason, when this machine can have none.
    """
    sweep()
    instance = _find(name)
    if instance is not None and instance.owner is None:
        yield up(name)
        return
    if instance is not None:  # another process's, which will take it down
        name = f"{name}-{secrets.token_hex(3)}"
    running = up(name, owner=ProcessId.current())
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


def _find(name: str) -> Instance | None:
    return next((instance for instance in instances() if instance.name == name), None)


def _attach(instance: Instance) -> Cluster:
    if instance.kind == "control-plane":
        raise ClusterError(f"cluster {instance.name!r} is a control plane without nodes")
    return kind.KindCluster(instance) if instance.kind == "kind" else node.Node(instance)
