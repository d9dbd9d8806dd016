"""`DDPJob.status.bookkeeping`: notes that only the operator reads."""

from typing import Annotated, Final

from pydantic import Field

from ddp_operator.api.constants import MAX_REPLICAS, MAX_SPARES
from ddp_operator.api.status.failures import NodeRecord
from ddp_operator.api.values.bounded import (
    OR_NONE,
    Count,
    Name,
    Sentence,
    StatusModel,
    Step,
    Time,
    Word,
    first_items,
    last_items,
    readable,
    wire_name,
)

MAX_METRICS: Final = 16
"""Most of a script's own metrics that are kept."""


class Stopwatch(StatusModel):
    """How far `status.goodput` accounts for the job's time."""

    accounted_until: Time
    ready_since: Time | None = Field(
        default=None,
        description=(
            "Since when all pods of a new or resumed job run, until its trainer reports how long "
            "training took."
        ),
    )
    counted_group: Time | None = Field(
        default=None,
        description="When the group formed whose report of its training time was counted last.",
    )


class SlowTurn(StatusModel):
    """A pod that had a slow rank in the latest comparisons."""

    pod: Name
    times: Count = Field(description="Comparisons in which it had a slow rank.")
    since: Time = Field(description="When the first of them was seen.")


class Pace(StatusModel):
    """The latest comparison of the ranks' own times per step, without waiting for others."""

    step: Step = Field(description="Step after which the ranks were compared.")
    turns: Annotated[tuple[SlowTurn, ...], readable(2)] = Field(
        default=(),
        description=(
            "The pod with a slow rank in this comparison, and one that takes turns with it. "
            "Empty: no rank was slow."
        ),
    )
    faster_in_a_row: Count = Field(
        default=0,
        description="Latest comparisons in a row in which status.slowRank was no longer slow.",
    )


class Bookkeeping(StatusModel):
    """Notes that only the operator reads. It writes `replacements` and `replacing` before
    it acts.
    """

    replacements: Annotated[dict[str, Count], first_items(MAX_REPLICAS)] = Field(
        default_factory=dict,
        description="By replica index: how often this attempt's pod was replaced.",
    )
    replacing: Annotated[tuple[Count, ...], last_items(MAX_REPLICAS)] = Field(
        default=(),
        description=(
            "Replica indices with replacements that may not exist yet. All other pods exist."
        ),
    )
    accepted_spec_hash: Name = Field(
        default="",
        description="Digest of the spec for which the API server last accepted all pods.",
    )
    ran_spec_hash: Name = Field(
        default="",
        description="Digest of the spec that has run: each kind of pod has started once with it.",
    )
    restart_requested: Word = Field(
        default="",
        description="Value of the annotation restart-requested that the operator acted on last.",
    )
    code_requested: Word = Field(
        default="",
        description="Value of the annotation code that the operator acted on last.",
    )
    code: Word = Field(
        default="",
        description="The code of the group's processes, as the annotation names it.",
    )
    isolation: Word = Field(
        default="",
        description="Job: the NetworkPolicy exists. Changing: it may exist. Absent: it does not.",
    )
    restarts_without_progress: Count = Field(
        default=0,
        description="Charged restarts since a later step was saved than ever before.",
    )
    checkpoint_step_at_restart: Step = Field(
        default=0, description="Latest saved step at a restart. Only a later one is progress."
    )
    node_failures_without_progress: Count = Field(
        default=0, description="Node failures since a later step was saved than ever before."
    )
    restarts_in_a_row: Count | None = Field(
        default=None,
        description=(
            "Restarts, charged or not, since a later step was saved or all pods ran for ten "
            "minutes. The pause grows with them."
        ),
    )
    broken_since: Time | None = Field(
        default=None,
        description=(
            "Since when a failure keeps the group from training. Other failures of its pods are "
            "part of it."
        ),
    )
    renewed: Annotated[tuple[Count, ...], last_items(MAX_REPLICAS)] = Field(
        default=(),
        description=(
            "Numbers of the group's pods that are new since then. Their failures are separate ones."
        ),
    )
    suspended_seconds: Count = Field(
        default=0,
        description=(
            "Seconds suspended or queued since startTime, without a period that has not ended."
        ),
    )
    queued_since: Time | None = Field(
        default=None, description="Since when pods wait to be admitted."
    )
    queue_group: Count | None = Field(
        default=None,
        description=(
            "How many pod groups the job has had in its queue before this one, which is part of "
            "this one's name."
        ),
    )
    queue_group_size: Count | None = Field(
        default=None,
        description="Pods of this group. Any other pod is admitted by itself.",
    )
    nodes: Annotated[tuple[NodeRecord, ...], Field(max_length=100), readable(100)] = Field(
        default=(),
        description="Nodes that failed pods of the job; the one that failed last is the last.",
    )
    barred_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(),
        description=(
            "Nodes of excludedNodes on which pods must not run. The others are used if no other "
            "node fits."
        ),
    )
    successors: Count | None = Field(
        default=None,
        description=(
            "Pods outside the group, besides spares, that are to take over from pods which still "
            "train."
        ),
    )
    nodes_to_leave: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(), description="Nodes that these pods leave; successors must not run there."
    )
    left_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(),
        description=(
            "Boot IDs of nodes that were about to leave, so that their pods were replaced."
        ),
    )
    slow_replaced: Annotated[tuple[Count, ...], last_items(100)] = Field(
        default=(),
        description="Node ranks of this attempt whose pods were replaced because a rank was slow.",
    )
    asked_nodes: Annotated[tuple[Name, ...], last_items(100)] = Field(
        default=(),
        description=(
            "Boot IDs of nodes that were about to leave, so that a checkpoint was requested."
        ),
    )
    launcher: Word = Field(
        default="",
        description=(
            "What the pods' launcher can do. Pod: its processes form the group again. InPlace: it "
            "restarts them."
        ),
    )
    saved_in_pod: Count | None = Field(
        default=None,
        description=(
            "Last attempt in which rank 0 saved to its pod's own disk. In that attempt no pod "
            "joins the group, and a failure restarts all pods."
        ),
    )
    remark: Word = Field(
        default="",
        description="Why ranks cannot meet, as rank 0's launcher reports it.",
    )
    remarked: Count | None = Field(default=None, description="Last attempt that had such a remark.")
    spares: Annotated[tuple[Count, ...], last_items(MAX_SPARES)] = Field(
        default=(), description="Numbers of the spares that were seen."
    )
    spares_renewed: Count | None = Field(
        default=None,
        description="Replaced pods of this attempt that had no place in the group.",
    )
    no_spare_before: Time | None = Field(
        default=None, description="No spare is created before this time."
    )
    ordered: Annotated[tuple[Count, ...], last_items(2)] = Field(
        default=(),
        description=(
            "Attempt and number of replaced pods when node ranks were last ordered by topology."
        ),
    )
    scheduling_retries: Count = Field(
        default=0, description="How often half-placed pods were released since all last ran."
    )
    lost_members: Count = Field(
        default=0, description="Pods of the group's previous generation that were lost."
    )
    grace_seconds: Count = Field(
        default=0, description="Seconds that the processes of that generation have to end."
    )
    pace: Annotated[Pace | None, OR_NONE] = None
    stopwatch: Annotated[Stopwatch | None, OR_NONE] = None
    trained_seconds: Annotated[float | None, Field(ge=0, le=1e9), OR_NONE] = Field(
        default=None,
        description=(
            "How long training to the last step took, as the trainer counts it: without starts, "
            "failures, and steps that were trained again."
        ),
    )
    resumed_step: Step | None = Field(
        default=None, description="Step at which the present group began, if known."
    )
    resumed_at: Time | None = Field(default=None, description="When that group formed.")
    curve: Sentence = Field(
        default="",
        description=(
            "Step, loss and score of the training in at most 128 rows, such as 10:2.31 25::0.9."
        ),
    )
    metrics: Annotated[dict[str, float], first_items(MAX_METRICS)] = Field(
        default_factory=dict,
        description="The newest values of the script's own metrics, by name.",
    )
    done_at: Time | None = Field(
        default=None,
        description=(
            "When the trainer reported that it is done: its result is safe, and a pod that is lost "
            "after that counts as completed."
        ),
    )


NOTES: Final = frozenset(wire_name(name) for name in Bookkeeping.model_fields)
"""Names of the bookkeeping's fields as stored."""
