"""`DDPJob.status`: the state of a job, and everything that the operator must remember."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.status.bookkeeping import Bookkeeping
from ddp_operator.api.status.failures import MAX_GAPS, Failure, GapRecord
from ddp_operator.api.status.progress import (
    CheckpointRecord,
    Goodput,
    MemoryCheckpointRecord,
    Progress,
    SlowRank,
)
from ddp_operator.api.status.world import World
from ddp_operator.api.values.bounded import (
    OR_NONE,
    Count,
    Line,
    Reason,
    Sentence,
    StatusModel,
    Step,
    Time,
    Word,
    first,
    last_items,
    readable,
)

Phase = Literal["Pending", "Starting", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
ConditionType = Literal["PodsCreated", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
ConditionStatus = Literal["True", "False", "Unknown"]


def _or_pending(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return "Pending"


_INDEXES: Final = 6 * MAX_REPLICAS
"""Characters that name each replica of the largest job one by one."""


class Condition(StatusModel):
    """One aspect of the job's state, as in Kubernetes' `metav1.Condition`."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: Sentence = ""
    last_transition_time: Time
    observed_generation: Step = 0


MAX_EXCLUDED: Final = 100
"""Largest number of nodes that a job avoids."""


class DDPJobStatus(StatusModel):
    """The state of a job. The operator writes `attempt`, `restarts`, `disruptions` and the
    bookkeeping's counters before it creates or deletes the pods that they count.
    """

    observed_generation: Step = 0
    phase: Annotated[Phase, WrapValidator(_or_pending)] = Field(
        default="Pending", description="Summary of the conditions."
    )
    reason: Word = Field(default="", description="Why the job is in this phase, in one word.")
    message: Sentence = Field(default="", description="Why the job is in this phase, for people.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), readable(16)] = ()
    attempt: Count = Field(
        default=0,
        description="Number of starts of the whole gang, from 0. Part of every pod's name.",
    )
    completed_indexes: Annotated[str, first(_INDEXES)] = Field(
        default="",
        description="Replica indices of this attempt's completed pods, such as 0-2,5.",
    )
    restarts: Count = Field(default=0, description="Restarts charged against restart.maxRestarts.")
    disruptions: Count = Field(default=0, description="Restarts that were not charged.")
    ready_replicas: Count = 0
    ready: Annotated[str, Field(max_length=16), first(16)] = Field(
        default="", description="Ready pods of all pods, such as 2/2."
    )
    selector: Line = Field(
        default="",
        description="Label selector by which an autoscaler finds the pods of an elastic job.",
    )
    world: Annotated[World | None, OR_NONE] = Field(
        default=None,
        description=(
            "Members of the group. Absent while the group is the original one, with the pods in "
            "their order, unless the job is elastic."
        ),
    )
    placement: Line = Field(
        default="",
        description=(
            "Where the pods run, such as 4 hosts, 1 sub-block, if all their nodes have such "
            "labels. Absent until all pods run, and if the operator may not read nodes."
        ),
    )
    start_time: Time | None = None
    first_pod_start_time: Time | None = Field(
        default=None,
        description=(
            "When a pod of the job was first seen running. After that, fields that shape pods can "
            "change only while the job is suspended."
        ),
    )
    completion_time: Time | None = None
    next_start_time: Time | None = Field(
        default=None,
        description="No pod is created before this time.",
    )
    failures: Annotated[tuple[Failure, ...], Field(max_length=10), readable(10)] = Field(
        default=(), description="Latest causes of restarts and of the job's failure."
    )

    gaps: Annotated[tuple[GapRecord, ...], Field(max_length=MAX_GAPS), readable(MAX_GAPS)] = Field(
        default=(),
        description="Node ranks in which nothing trains, and since when.",
    )

    progress: Annotated[Progress | None, OR_NONE] = None
    slow_rank: Annotated[SlowRank | None, OR_NONE] = None
    checkpoint: Annotated[CheckpointRecord | None, OR_NONE] = None
    memory_checkpoint: Annotated[MemoryCheckpointRecord | None, OR_NONE] = None
    goodput: Annotated[Goodput | None, OR_NONE] = None
    excluded_nodes: Annotated[
        tuple[str, ...], Field(max_length=MAX_EXCLUDED), last_items(MAX_EXCLUDED)
    ] = Field(
        default=(),
        description=(
            "Nodes that the job's next pods avoid. Those with a broken device, which are not used "
            "at all, come first."
        ),
    )
    bookkeeping: Bookkeeping = Field(
        default_factory=Bookkeeping,
        description="The operator's own notes. Not an interface: they may change in any release.",
    )

    def bounded(self) -> Self:
        """Return the status cut to what may be stored."""
        return type(self).model_validate(self)

    def noting(self, **notes: Any) -> Self:
        """Return the status with these fields of the bookkeeping changed."""
        known = self.bookkeeping
        if all(getattr(known, name) == value for name, value in notes.items()):
            return self
        return self.updated(bookkeeping=known.updated(**notes))

    def condition(self, type_: ConditionType) -> Condition | None:
        """Return the condition of this type, or None if it was never set."""
        return next((c for c in self.conditions if c.type == type_), None)

    def is_true(self, type_: ConditionType) -> bool:
        """Return whether the condition of this type is set and true."""
        condition = self.condition(type_)
        return condition is not None and condition.status == "True"

    @property
    def running_since(self) -> datetime | None:
        """Since when all pods run; None if they do not."""
        running = self.condition("Running")
        return running.last_transition_time if running and running.status == "True" else None

    @property
    def saved_step(self) -> int | None:
        """Newest step that the training saved, on a disk or in the memory of its pods."""
        saved = (self.checkpoint, self.memory_checkpoint)
        steps = (each.step for each in saved if each)
        return max((step for step in steps if step is not None), default=None)

    @property
    def saved_at(self) -> datetime | None:
        """When the training saved last, if that is known."""
        saved = (self.checkpoint, self.memory_checkpoint)
        times = (each.time for each in saved if each)
        return max((time for time in times if time is not None), default=None)

    @property
    def incarnation(self) -> tuple[int, int, int]:
        """Attempt, generation of the group, and replacements of its pods. The value is new after
        each restart.
        """
        generation = self.world.generation if self.world else 0
        notes = self.bookkeeping
        replaced = sum(notes.replacements.values()) - (notes.spares_renewed or 0)
        return self.attempt, generation, replaced

    def is_paused(self, now: datetime) -> bool:
        """Return whether it is too early to create pods."""
        return self.next_start_time is not None and now < self.next_start_time

    @property
    def fixes_pods(self) -> bool:
        """True if fields that shape pods can change only while the job is suspended."""
        return not (self.first_pod_start_time is None and self.completion_time is None)

    @property
    def finished(self) -> bool:
        """True if the job has succeeded or failed permanently."""
        return self.is_true("Succeeded") or self.is_true("Failed")
