"""A job as this program sees it. The operator, the CRD, or both may be of another release: what
cannot be read is left out, and said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Self

from pydantic import ValidationError

from ddp_operator.api.constants import MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.job import DDPJob, InvalidJobError
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.membership.world import by_slot, slots_of
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key, Manifest


@dataclass(frozen=True)
class JobSnapshot:
    """Identity, state, and as much of the wish as could be read."""

    manifest: Manifest
    key: Key
    uid: str
    generation: int
    created: datetime
    deleting: bool
    replicas: int
    spares: int
    """Pods that are wanted beyond those."""
    elastic: bool
    """Whether its group may be of another size."""
    suspend: bool
    status: DDPJobStatus

    @classmethod
    def read(cls, manifest: Manifest) -> Self:
        """Read a job as the API server has it; no content of it is an error."""
        metadata = manifest["metadata"]
        spec = manifest.get("spec") or {}
        try:
            status = DDPJobStatus.model_validate(manifest.get("status") or {})
        except ValidationError:  # of another release, whose counters are none
            status = DDPJobStatus()
        replicas, spares = spec.get("replicas", 1), spec.get("spares", 0)
        return cls(
            manifest=manifest,
            key=Key(metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            deleting="deletionTimestamp" in metadata,
            replicas=min(max(replicas, 1), MAX_REPLICAS) if isinstance(replicas, int) else 1,
            spares=min(max(spares, 0), MAX_SPARES) if isinstance(spares, int) else 0,
            elastic=isinstance(spec.get("elastic"), Mapping),
            suspend=bool(spec.get("suspend")),
            status=status,
        )

    @property
    def name(self) -> str:
        """Its name, which the API server has checked."""
        return self.key.name

    @cached_property
    def parsed(self) -> DDPJob | None:
        """The whole job; None where this release cannot read its spec, see `problem`."""
        return self._parsed[0]

    @property
    def problem(self) -> str:
        """Why its spec cannot be read; empty where it can."""
        return self._parsed[1]

    @cached_property
    def _parsed(self) -> tuple[DDPJob | None, str]:
        try:
            return DDPJob.parse(self.manifest), ""
        except InvalidJobError as error:
            return None, str(error)

    @cached_property
    def slots(self) -> Sequence[int]:
        """The group's pods, by the numbers in their names, in the order of their node ranks."""
        return slots_of(self.status.world, self.replicas, elastic=self.elastic)

    @cached_property
    def node_ranks(self) -> Mapping[int, int]:
        """Which pods have which places, by the numbers in the pods' names."""
        return by_slot(self.slots)

    def placed(self, pod: PodState) -> PodState:
        """The same pod, known by its place, if it has one in the present attempt."""
        identity = pod.identity
        if identity.attempt != self.status.attempt:
            return pod
        return replace(pod, identity=identity.in_place(self.node_ranks))

    @property
    def unobserved(self) -> bool:
        """Whether no operator has looked at it since it was made, or was changed last."""
        return self.status.observed_generation < self.generation

    def since(self, type_: str) -> datetime | None:
        """Since when a condition of this type is true; None while it is not."""
        found = (c for c in self.status.conditions if c.type == type_ and c.status == "True")
        return next((c.last_transition_time for c in found), None)
