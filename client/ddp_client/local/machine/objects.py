"""Objects of a cluster: what all have in common, and those that one machine does not have."""

from collections.abc import Mapping, Sequence

from ddp_operator.ports import (
    AlreadyExistsError,
    Key,
    Manifest,
    Nodes,
    NotFoundError,
    controller_of,
)


class NoOtherObjects:
    """The methods of `ports.Cluster` for objects other than jobs and pods: they have no effect."""

    def nodes(self) -> Nodes:
        """See `ports.Cluster`. This machine is the only node, so there is no choice."""
        return Nodes()

    async def create_service(self, manifest: Manifest) -> None:
        """See `ports.Cluster`. All pods are on loopback."""

    async def create_secret(self, manifest: Manifest) -> None:
        """See `ports.Cluster`. Pods on one machine have their tokens in plain text."""

    async def apply(self, manifest: Manifest) -> None:
        """See `ports.Cluster`. Nothing isolates or schedules processes on one machine."""

    async def read(self, named: Manifest) -> Manifest:
        """See `ports.Cluster`. There is none."""
        raise NotFoundError(f"no {named['kind']} on one machine", status=404)

    async def find(self, like: Manifest, *, labels: Mapping[str, str]) -> Sequence[Manifest]:
        """See `ports.Cluster`. There is none."""
        del like, labels
        return ()

    async def update(self, changed: Manifest) -> Manifest:
        """See `ports.Cluster`. Nothing is ever read."""
        return changed

    async def patch_status_of(self, stored: Manifest, status: Manifest) -> None:
        """See `ports.Cluster`. Nothing is ever read."""

    async def delete(self, stored: Manifest) -> None:
        """See `ports.Cluster`. Nothing is ever read."""

    async def set_priority_boost(self, workload: Key, boost: int) -> None:
        """See `ports.Cluster`. No queue preempts jobs on one machine."""

    async def delete_network_policy(self, policy: Key, *, owner_uid: str) -> None:
        """See `ports.Cluster`. There is none."""


def require_same_controller(*, existing: Manifest, wanted: Manifest) -> None:
    """Check that an existing pod was created by an earlier attempt at the same call.

    Raises:
        AlreadyExistsError: it has another controller.
    """
    theirs = controller_of(existing).get("uid")
    if theirs is None or theirs != controller_of(wanted).get("uid"):
        text = f"pod {Key.of(wanted)} already exists and has another owner"
        raise AlreadyExistsError(text, status=409)
