"""`DDPJob.status`: what the operator says of a job, and all that it must remember."""

from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.alias_generators import to_camel

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.spec import FailureClass

Phase = Literal["Pending", "Starting", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
ConditionType = Literal["PodsCreated", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
ConditionStatus = Literal["True", "False", "Unknown"]


def format_time(moment: datetime) -> str:
    """Kubernetes' `metav1.Time`: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Times to which all that the operator adds can be added."""


def _in_range(moment: datetime) -> datetime:
    return min(max(moment.replace(tzinfo=moment.tzinfo or UTC), _FIRST), _LAST)


Time = Annotated[
    datetime,
    AfterValidator(_in_range),
    PlainSerializer(format_time, return_type=str, when_used="json"),
]


def _between(value: int, *, least: int, most: int) -> int:
    return min(max(value, least), most)


_EXACT: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 8259, section 6)."""
_MOST: Final = 2**31 - 1
"""Seconds of 68 years, and restarts of a job that fails every second for as long."""

Count = Annotated[int, AfterValidator(partial(_between, least=0, most=_MOST))]
Step = Annotated[int, AfterValidator(partial(_between, least=0, most=_EXACT))]
Number = Annotated[int, AfterValidator(partial(_between, least=-_EXACT, most=_EXACT))]


def _wire_name(name: str) -> str:
    return to_camel(name.rstrip("_"))  # `class_`, since Python has a word `class` of its own


class StatusModel(BaseModel):
    """Base of all that the operator writes: camelCase; fields of other versions are ignored.

    Whatever is too long or too large is cut, when it is read and (`DDPJobStatus.bounded`) before it
    is written.
    What another version has written and this one cannot read is left out, the counters excepted: no
    job may fail of a word.
    """

    model_config = ConfigDict(
        alias_generator=_wire_name,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        revalidate_instances="always",
    )


def _first(value: Any, *, limit: int) -> Any:
    return value[:limit] if isinstance(value, str) else value


def _last(value: Any, *, limit: int) -> Any:
    return value[-limit:] if isinstance(value, list | tuple) else value


def _first_items(value: Any, *, limit: int) -> Any:
    return dict(islice(value.items(), limit)) if isinstance(value, dict) else value


_TRIED: Final = 4
"""Items of a list that are looked at for each one that may be kept."""


def _readable(value: Any, handler: ValidatorFunctionWrapHandler, *, limit: int) -> Any:
    """The newest of those items of a list that can be read, so far as it is worth the search."""
    found: list[Any] = []
    for item in value[-_TRIED * limit :] if isinstance(value, list | tuple) else ():
        try:
            found.extend(handler([item]))
        except ValidationError:
            continue
    return tuple(found[-limit:])


def _or_none(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


def _known_phase(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    return _or_none(value, handler) or "Pending"


def _cut(limit: int) -> BeforeValidator:
    return BeforeValidator(partial(_first, limit=limit))


def _or_unknown(text: str) -> str:
    """Texts without content are not stored, and the schema wants some."""
    return text or "Unknown"


MAX_WORD: Final = 256
Word = Annotated[str, Field(max_length=MAX_WORD), _cut(MAX_WORD)]
Reason = Annotated[Word, AfterValidator(_or_unknown)]
Name = Annotated[str, Field(max_length=253), _cut(253)]
"""As long as a DNS subdomain may be (RFC 1123)."""
Line = Annotated[str, Field(max_length=1024), _cut(1024)]
Sentence = Annotated[str, Field(max_length=4096), _cut(4096)]


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


FailureAction = Literal["RestartPod", "RestartGang", "FailJob", "Ignore"]


class Failure(StatusModel):
    """What ended an attempt, or one pod of it."""

    time: Time
    attempt: Count
    index: Count = Field(description="Replica index of the pod: its node rank.")
    rank: Count | None = Field(default=None, description="Global rank that failed, where known.")
    pod: Annotated[Name, AfterValidator(_or_unknown)]
    container: Name = ""
    node: Name = ""
    exit_code: Number | None = None
    signal: Number | None = None
    reason: Reason
    message: Line = ""
    class_: FailureClass = Field(description="Whose fault it was.")
    action: FailureAction = Field(default="RestartGang", description="What was done about it.")
    charged: bool = Field(default=False, description="true: it counts against maxRestarts.")

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


class CheckpointRecord(StatusModel):
    """The latest checkpoint that the trainer reports."""

    step: Step
    path: Line = ""
    time: Time | None = None


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
        default=0, description="Between failures and running again, and of steps that were redone."
    )
    suspended_seconds: Count = 0
    steps_lost: Step = Field(default=0, description="Steps that had to be done again.")
    accounted_until: Time


class DDPJobStatus(StatusModel):
    """The state of a job. `attempt`, `replacements`, `restarts` and `disruptions` are counters
    that are written before the pods that they account for are created or deleted."""

    observed_generation: Step = 0
    phase: Annotated[Phase, WrapValidator(_known_phase)] = Field(
        default="Pending", description="Derived from the conditions."
    )
    reason: Word = Field(default="", description="Why the job is in this phase, in one word.")
    message: Sentence = Field(default="", description="Why the job is in this phase, for people.")
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=16), WrapValidator(partial(_readable, limit=16))
    ] = ()
    attempt: Count = Field(
        default=0, description="Counts starts of the whole gang, from 0; part of every pod's name."
    )
    replacements: Annotated[
        dict[str, Count], BeforeValidator(partial(_first_items, limit=MAX_REPLICAS))
    ] = Field(
        default_factory=dict,
        description="By replica index: how often this attempt's pod was replaced, where it was.",
    )
    replacing: Annotated[tuple[Count, ...], BeforeValidator(partial(_last, limit=MAX_REPLICAS))] = (
        Field(
            default=(),
            description="Replica indices whose replacements may not exist yet; all other pods do.",
        )
    )
    accepted_spec_hash: Name = Field(
        default="",
        description="Digest of the spec whose pods the API server last accepted, all of them.",
    )
    restart_requested: Word = Field(
        default="", description="The annotation restart-requested, as it was acted on last."
    )
    isolation: Word = Field(
        default="",
        description="Job: its NetworkPolicy exists. Changing: it may. Absent: it does not.",
    )
    completed_indexes: Annotated[str, _cut(_INDEXES)] = Field(
        default="",
        description="Replica indices of this attempt whose pods have ended well, such as 0-2,5.",
    )
    restarts: Count = Field(default=0, description="Restarts charged against restart.maxRestarts.")
    disruptions: Count = Field(default=0, description="Restarts that were not charged.")
    ready_replicas: Count = 0
    ready: Annotated[str, Field(max_length=16), _cut(16)] = Field(
        default="", description="Ready pods of all pods, such as 2/2."
    )
    start_time: Time | None = None
    completion_time: Time | None = None
    next_start_time: Time | None = Field(
        default=None,
        description="No pod is created before this time.",
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
    unstartable_since: Time | None = Field(
        default=None, description="Since when pods lack what only people or a registry can give."
    )
    refused_since: Time | None = Field(
        default=None, description="Since when the API server refuses pods, by quota or policy."
    )
    suspended_seconds: Count = Field(
        default=0, description="Time spent suspended since startTime, when not suspended now."
    )
    failures: Annotated[
        tuple[Failure, ...], Field(max_length=10), WrapValidator(partial(_readable, limit=10))
    ] = Field(default=(), description="The latest causes of restarts and of the job's failure.")

    progress: Annotated[Progress | None, WrapValidator(_or_none)] = None
    checkpoint: Annotated[CheckpointRecord | None, WrapValidator(_or_none)] = None
    goodput: Annotated[Goodput | None, WrapValidator(_or_none)] = None
    node_failures: Annotated[
        dict[Name, Count], BeforeValidator(partial(_first_items, limit=100))
    ] = Field(default_factory=dict, description="Failures by the node that they are charged to.")
    excluded_nodes: Annotated[
        tuple[str, ...], Field(max_length=100), BeforeValidator(partial(_last, limit=100))
    ] = Field(default=(), description="Nodes that the job's next pods avoid.")
    scheduling_retries: Count = Field(
        default=0, description="How often half-placed pods were given up, since all last ran."
    )

    def bounded(self) -> Self:
        """The same, as much of it as may be stored."""
        return type(self).model_validate(self)

    def condition(self, type_: ConditionType) -> Condition | None:
        """Return the condition of this type, or None when it was never set."""
        return next((c for c in self.conditions if c.type == type_), None)

    def is_true(self, type_: ConditionType) -> bool:
        """Say whether the condition of this type is set and true."""
        condition = self.condition(type_)
        return condition is not None and condition.status == "True"

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed for good."""
        return self.is_true("Succeeded") or self.is_true("Failed")
