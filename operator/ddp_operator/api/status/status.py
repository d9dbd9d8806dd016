"""`DDPJob.status`: what the operator says of a job, and all that it must remember."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from ddp_operator.api.constants import MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status.world import World
from ddp_operator.api.values.bounded import (
    OR_NONE,
    OR_UNKNOWN,
    Count,
    Line,
    Name,
    Number,
    Reason,
    Sentence,
    StatusModel,
    Step,
    Time,
    Word,
    first,
    first_items,
    last_items,
    readable,
    wire_name,
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
"""Characters that name every replica of the largest job by itself."""


class Condition(StatusModel):
    """One aspect of the job's state, as in Kubernetes' own `metav1.Condition`."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: Sentence = ""
    last_transition_time: Time
    observed_generation: Step = 0


FailureAction = Literal["RestartInPlace", "RestartPod", "RestartGang", "FailJob", "Ignore"]


class Failure(StatusModel):
    """What ended an attempt, or one pod of it."""

    time: Time
    attempt: Count
    index: Count = Field(description="Replica index of the pod: its node rank.")
    rank: Count | None = Field(default=None, description="Global rank that failed, where known.")
    pod: Annotated[Name, OR_UNKNOWN]
    container: Name = ""
    node: Name = ""
    boot_id: Word = Field(
        default="", description="Of the node that it is charged to, where known: its last start."
    )
    exit_code: Number | None = None
    signal: Number | None = None
    reason: Reason
    message: Line = ""
    class_: FailureClass = Field(description="Whose fault it was.")
    action: FailureAction = Field(default="RestartGang", description="What was done about it.")
    charged: bool = Field(default=False, description="true: it counts against maxRestarts.")
    continued: bool | None = Field(
        default=None,
        description="true: it is part of the failure before it, and is not charged again.",
    )

    @property
    def disruption(self) -> bool:
        """Whether the cluster or a person took the pod away: not the training's fault."""
        return self.class_ == "Disruption"


class Progress(StatusModel):
    """How far training is, as the trainer of pod 0 reports it."""

    step: Step
    total_steps: Step | None = None
    epoch: Step | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    slowest_rank: Step | None = None
    updated_at: Time = Field(description="When this step was first seen.")
    last_step_time: Time | None = Field(
        default=None, description="When a step was last completed, by the trainer's clock."
    )
    resumed_step: Step | None = Field(
        default=None, description="The step that the present group began with, where known."
    )
    resumed_at: Time | None = Field(default=None, description="When that group formed.")


class CheckpointRecord(StatusModel):
    """The latest checkpoint that the trainer reports."""

    step: Step
    path: Line = ""
    time: Time | None = None


class Outage(StatusModel):
    """Training has not gone on yet since a restart: its time counts as lost."""

    since: Time = Field(description="When what the latest restart is for had happened.")
    until_step: Step = Field(description="The step whose completion ends it.")
    lost_from: Time = Field(description="From when on the time before the restart is lost.")


GapReason = Literal[
    "Paused",
    "Refused",
    "Unscheduled",
    "NotStarted",
    "CannotStart",
    "Initializing",
    "Starting",
    "Silent",
    "Leaving",
    "Failed",
    "Lost",
]
MAX_EXCLUDED: Final = 100
"""Nodes that a job avoids at most."""
MAX_GAPS: Final = 32


class GapRecord(StatusModel):
    """A place of the group in which nothing trains."""

    node_rank: Count
    reason: GapReason = Field(
        description=(
            "Paused: the operator waits before it creates the pod. Refused: the API server does "
            "not accept the pod. Unscheduled: it has no node. NotStarted: it has a node and no "
            "process. CannotStart: the kubelet says why. Initializing: its init containers run. "
            "Starting: it is not ready. Silent: its "
            "node or its launcher does not answer. Leaving, Failed, Lost: it is told to end, has "
            "ended, was taken away."
        )
    )
    since: Time = Field(description="Since when for this reason, as the operator saw it.")
    node: Name = ""


class Goodput(StatusModel):
    """What the job's age was spent on: the seconds add up to accountedUntil - creationTimestamp.

    They are written when the job's state changes, so that a running job's latest stretch is not in
    them yet.
    """

    pending_seconds: Count = Field(default=0, description="Waiting for nodes, or to start again.")
    starting_seconds: Count = Field(
        default=0, description="From nodes to the first attempt running."
    )
    training_seconds: Count = 0
    lost_seconds: Count = Field(
        default=0,
        description="From failures until a step is completed, and of steps that were redone.",
    )
    suspended_seconds: Count = 0
    steps_lost: Step = Field(default=0, description="Steps that had to be done again.")
    accounted_until: Time
    outage: Annotated[Outage | None, OR_NONE] = None


class Bookkeeping(StatusModel):
    """What only the operator remembers, be it before it acts (`replacements`, `replacing`)."""

    replacements: Annotated[dict[str, Count], first_items(MAX_REPLICAS)] = Field(
        default_factory=dict,
        description="By replica index: how often this attempt's pod was replaced, where it was.",
    )
    replacing: Annotated[tuple[Count, ...], last_items(MAX_REPLICAS)] = Field(
        default=(),
        description="Replica indices whose replacements may not exist yet; all other pods do.",
    )
    accepted_spec_hash: Name = Field(
        default="",
        description="Digest of the spec whose pods the API server last accepted, all of them.",
    )
    ran_spec_hash: Name = Field(
        default="",
        description="Digest of the spec that has run: each kind of pod with it has started once.",
    )
    restart_requested: Word = Field(
        default="", description="The annotation restart-requested, as it was acted on last."
    )
    isolation: Word = Field(
        default="",
        description="Job: its NetworkPolicy exists. Changing: it may. Absent: it does not.",
    )
    restarts_without_progress: Count = Field(
        default=0,
        description="Charged restarts since the checkpointed step last advanced.",
    )
    checkpoint_step_at_restart: Step = Field(
        default=0, description="The checkpointed step from which restarts without progress count."
    )
    node_failures_without_progress: Count = Field(
        default=0, description="Node-level failures since the checkpointed step last advanced."
    )
    lost_checkpoints: Count | None = Field(
        default=None,
        description=(
            "How often training resumed behind a checkpointed step, since it last resumed beyond "
            "all of those."
        ),
    )
    farthest_lost_step: Step | None = Field(
        default=None, description="The last of the checkpointed steps that training resumed behind."
    )
    broken_since: Time | None = Field(
        default=None,
        description=(
            "Since when a failure keeps the group from training: what else fails in its pods is "
            "part of that failure."
        ),
    )
    renewed: Annotated[tuple[Count, ...], last_items(MAX_REPLICAS)] = Field(
        default=(),
        description="Numbers of the group's pods that are new since then: they fail on their own.",
    )
    suspended_seconds: Count = Field(
        default=0,
        description="Time spent suspended or queued since startTime, up to the last end of it.",
    )
    queued_since: Time | None = Field(
        default=None, description="Since when pods wait to be admitted."
    )
    signalled_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(), description="Those of excludedNodes that say so themselves, by their signals."
    )
    excluded_boot_ids: Annotated[dict[Name, Word], first_items(100)] = Field(
        default_factory=dict,
        description="By node that is excluded because of failures: the boot ID that it had.",
    )
    left_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(),
        description="Nodes whose pods were replaced since they were about to go, by boot ID.",
    )
    asked_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(),
        description="The same, of nodes because of whose end a checkpoint was asked for.",
    )
    launcher: Word = Field(
        default="",
        description=(
            "What the pods' launcher has said: Pod: its processes form their group anew, InPlace: "
            "it starts them anew."
        ),
    )
    saved_in_pod: Count | None = Field(
        default=None,
        description=(
            "The last attempt in which rank 0 saved to its pod's own disk. In that attempt no pod "
            "joins the group, and a failure restarts all pods."
        ),
    )
    spares: Annotated[tuple[Count, ...], last_items(MAX_SPARES)] = Field(
        default=(), description="Numbers of pods without a place that were seen."
    )
    spares_renewed: Count | None = Field(
        default=None,
        description="Replacements of this attempt whose pods had no place in the group.",
    )
    no_spare_before: Time | None = Field(
        default=None, description="No spare is created before this time."
    )
    ordered: Annotated[tuple[Count, ...], last_items(2)] = Field(
        default=(),
        description=(
            "Attempt and replaced pods of the group for which node ranks were last given out along "
            "the topology."
        ),
    )
    scheduling_retries: Count = Field(
        default=0, description="How often half-placed pods were given up, since all last ran."
    )


NOTES: Final = frozenset(wire_name(name) for name in Bookkeeping.model_fields)
"""The bookkeeping's fields as they are stored."""


class DDPJobStatus(StatusModel):
    """The state of a job. `attempt`, `restarts`, `disruptions` and the bookkeeping's counters are
    written before the pods that they account for are created or deleted."""

    observed_generation: Step = 0
    phase: Annotated[Phase, WrapValidator(_or_pending)] = Field(
        default="Pending", description="Derived from the conditions."
    )
    reason: Word = Field(default="", description="Why the job is in this phase, in one word.")
    message: Sentence = Field(default="", description="Why the job is in this phase, for people.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), readable(16)] = ()
    attempt: Count = Field(
        default=0, description="Counts starts of the whole gang, from 0; part of every pod's name."
    )
    completed_indexes: Annotated[str, first(_INDEXES)] = Field(
        default="",
        description="Replica indices of this attempt whose pods have ended well, such as 0-2,5.",
    )
    restarts: Count = Field(default=0, description="Restarts charged against restart.maxRestarts.")
    disruptions: Count = Field(default=0, description="Restarts that were not charged.")
    ready_replicas: Count = 0
    ready: Annotated[str, Field(max_length=16), first(16)] = Field(
        default="", description="Ready pods of all pods, such as 2/2."
    )
    selector: Line = Field(
        default="",
        description="By which an autoscaler finds the pods of an elastic job: a label selector.",
    )
    world: Annotated[World | None, OR_NONE] = Field(
        default=None,
        description=(
            "Who is in the group. Absent as long as it is the one that it began as, of the pods "
            "in their order, unless the job is elastic."
        ),
    )
    placement: Line = Field(
        default="",
        description=(
            "Where the pods run, such as 4 hosts, 1 sub-block: what they share as far as all their "
            "nodes have labels of it. Absent before all of them run, and where the operator may "
            "not see nodes."
        ),
    )
    start_time: Time | None = None
    first_pod_start_time: Time | None = Field(
        default=None,
        description=(
            "When a pod of the job was first seen running. From then on, fields that shape pods "
            "change only while the job is suspended."
        ),
    )
    completion_time: Time | None = None
    next_start_time: Time | None = Field(
        default=None,
        description="No pod is created before this time.",
    )
    failures: Annotated[tuple[Failure, ...], Field(max_length=10), readable(10)] = Field(
        default=(), description="The latest causes of restarts and of the job's failure."
    )

    gaps: Annotated[tuple[GapRecord, ...], Field(max_length=MAX_GAPS), readable(MAX_GAPS)] = Field(
        default=(),
        description="Places of the group in which nothing trains: those that have waited longest.",
    )

    progress: Annotated[Progress | None, OR_NONE] = None
    checkpoint: Annotated[CheckpointRecord | None, OR_NONE] = None
    goodput: Annotated[Goodput | None, OR_NONE] = None
    node_failures: Annotated[dict[Name, Count], first_items(100)] = Field(
        default_factory=dict, description="Failures by the node that they are charged to."
    )
    excluded_nodes: Annotated[
        tuple[str, ...], Field(max_length=MAX_EXCLUDED), last_items(MAX_EXCLUDED)
    ] = Field(default=(), description="Nodes that the job's next pods avoid.")
    bookkeeping: Bookkeeping = Field(
        default_factory=Bookkeeping,
        description="The operator's own notes: no interface, they may change with any release.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, stored: Any) -> Any:
        """Read the notes beside all else, where they stood before there was a bookkeeping.

        They are the later ones where there are both: only an operator of before leaves them there.
        """
        if not isinstance(stored, Mapping) or NOTES.isdisjoint(stored):
            return stored
        rest = {name: value for name, value in stored.items() if name not in NOTES}
        return rest | {"bookkeeping": {name: stored[name] for name in NOTES & stored.keys()}}

    def bounded(self) -> Self:
        """The same, as much of it as may be stored."""
        return type(self).model_validate(self)

    def noting(self, **notes: Any) -> Self:
        """The same with these fields of the bookkeeping."""
        known = self.bookkeeping
        if all(getattr(known, name) == value for name, value in notes.items()):
            return self
        return self.model_copy(update={"bookkeeping": self.bookkeeping.model_copy(update=notes)})

    def condition(self, type_: ConditionType) -> Condition | None:
        """Return the condition of this type, or None when it was never set."""
        return next((c for c in self.conditions if c.type == type_), None)

    def is_true(self, type_: ConditionType) -> bool:
        """Say whether the condition of this type is set and true."""
        condition = self.condition(type_)
        return condition is not None and condition.status == "True"

    @property
    def incarnation(self) -> tuple[int, int, int]:
        """Attempt, generation of the group, and replacements of its pods: they differ after each
        restart.
        """
        generation = self.world.generation if self.world else 0
        notes = self.bookkeeping
        replaced = sum(notes.replacements.values()) - (notes.spares_renewed or 0)
        return self.attempt, generation, replaced

    def is_paused(self, now: datetime) -> bool:
        """Say whether the time has not come yet before which no pod is created."""
        return self.next_start_time is not None and now < self.next_start_time

    @property
    def fixes_pods(self) -> bool:
        """Whether fields that shape pods may change only while the job is suspended."""
        return not (self.first_pod_start_time is None and self.completion_time is None)

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed for good."""
        return self.is_true("Succeeded") or self.is_true("Failed")
