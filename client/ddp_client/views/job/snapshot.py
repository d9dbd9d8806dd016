"""A job as the client reads it.

The operator or the CRD may be of another release. Fields that this release cannot read are left
out, and `problem` names them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Self

from ddp_operator.api import ranks
from ddp_operator.api.constants import MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.membership.world import by_slot, slots_of
from ddp_operator.job.planning.rejection import stored_status
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Key, Manifest

from ddp_client.views.refused import RefusedError


@dataclass(frozen=True)
class JobSnapshot:
    """A job's identity and status, and as much of its spec as this release can read."""

    manifest: Manifest
    key: Key
    uid: str
    generation: int
    created: datetime
    deleting: bool
    replicas: int
    spares: int
    """Pods beyond the replicas."""
    elastic: bool
    """The group's size may change."""
    suspend: bool
    status: DDPJobStatus

    @classmethod
    def read(cls, manifest: Manifest) -> Self:
        """Read a job from the API server; no content raises an error."""
        metadata = manifest["metadata"]
        spec = manifest.get("spec") or {}
        replicas, spares = spec.get("replicas", 1), spec.get("spares", 0)
        return cls(
            manifest=manifest,
            key=Key.of(manifest),
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            deleting="deletionTimestamp" in metadata,
            replicas=min(max(replicas, 1), MAX_REPLICAS) if isinstance(replicas, int) else 1,
            spares=min(max(spares, 0), MAX_SPARES) if isinstance(spares, int) else 0,
            elastic=isinstance(spec.get("elastic"), Mapping),
            suspend=bool(spec.get("suspend")),
            status=stored_status(manifest),
        )

    @property
    def name(self) -> str:
        """The job's name, validated by the API server."""
        return self.key.name

    @cached_property
    def parsed(self) -> DDPJob | None:
        """The job as a model; None when this release cannot read its spec, see `problem`."""
        return self._parsed[0]

    @property
    def problem(self) -> str:
        """Why the spec cannot be read; empty when it can."""
        return self._parsed[1]

    @cached_property
    def _parsed(self) -> tuple[DDPJob | None, str]:
        try:
            return DDPJob.parse(self.manifest), ""
        except InvalidJobError as error:
            return None, str(error)

    @cached_property
    def slots(self) -> Sequence[int]:
        """The numbers in the names of the group's pods, in the order of node ranks."""
        return slots_of(self.status.world, self.replicas, elastic=self.elastic)

    @cached_property
    def node_ranks(self) -> Mapping[int, int]:
        """The node rank of each pod in the group, by the number in the pod's name."""
        return by_slot(self.slots)

    def placed(self, pod: PodState) -> PodState:
        """Return the pod with its node rank as index, if it has one in the current attempt."""
        identity = pod.identity
        if identity.attempt != self.status.attempt:
            return pod
        slot = identity.slot
        index = self.node_ranks.get(slot, slot)
        at = Identity.at(slot, identity.attempt, identity.replacement, index=index)
        return replace(pod, identity=at)

    def ranks_of(self, index: int) -> range:
        """Return the ranks of the pod with this node rank; if the spec cannot be read, one."""
        return ranks.ranks(self.parsed.spec, index) if self.parsed else range(index, index + 1)

    def indexes_of(self, chosen: Collection[int]) -> set[int]:
        """Return the node ranks of the pods of these ranks.

        Raises:
            RefusedError: the job has no such rank, or its spec cannot be read.
        """
        if not chosen:
            return set()
        if self.parsed is None:
            raise RefusedError(f"cannot tell which pod has which rank: {self.problem}")
        size = ranks.world_size(self.parsed.spec)
        if not 0 <= min(chosen) <= max(chosen) < size:
            raise RefusedError(f"rank {max(chosen)}: the job has ranks 0 to {size - 1} only")
        return {ranks.pod_of(self.parsed.spec, rank) for rank in chosen}

    @property
    def unobserved(self) -> bool:
        """True when no operator has handled the latest change of the spec."""
        return self.status.observed_generation < self.generation

    def since(self, type_: str) -> datetime | None:
        """Return since when a condition is true; None when it is not."""
        conditions = (c for c in self.status.conditions if c.type == type_ and c.status == "True")
        return next((c.last_transition_time for c in conditions), None)
