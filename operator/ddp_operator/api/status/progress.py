"""Progress, checkpoints and goodput of a job, in `DDPJob.status`."""

from typing import Annotated

from pydantic import Field

from ddp_operator.api.values.bounded import (
    OR_NONE,
    Count,
    Line,
    Name,
    StatusModel,
    Step,
    Time,
    Word,
)


class SlowTurn(StatusModel):
    """Another pod that takes turns as the slowest, as long as both are slow."""

    pod: Name
    times: Count = Field(description="Comparisons in which it had a slow rank.")
    since: Time | None = Field(default=None, description="When the first of them was seen.")


class Pace(StatusModel):
    """The latest comparison of the ranks' own times per step, without waiting for others."""

    step: Step = Field(description="Step after which the ranks were compared.")
    rank: Step = Field(description="The slowest rank.")
    pod: Name = Field(default="", description="Its pod.")
    ratio: float = Field(description="Its own time, divided by the mean of the other ranks.")
    slow_in_a_row: Count = Field(
        default=0,
        description=(
            "Comparisons in which this pod had a slow rank, without one in between in which no pod "
            "or a third one had it."
        ),
    )
    slow_since: Time | None = Field(default=None, description="When the first of them was seen.")
    turn: Annotated[SlowTurn | None, OR_NONE] = None


class SlowRank(StatusModel):
    """A rank that makes the others wait in each step."""

    rank: Step
    pod: Name = ""
    node: Name = ""
    ratio: float = Field(
        description=(
            "Its own time per step, without waiting for others, divided by the mean of the others."
        )
    )
    seconds_per_step: float = Field(
        description="Seconds that it adds to each step: its own time less the mean of the others."
    )
    since: Time = Field(description="When it was first seen to be slow.")
    faster_in_a_row: Count = Field(
        default=0, description="Latest comparisons in a row in which it was no longer slow."
    )
    not_replaced: Word = Field(
        default="", description="Why its pod is not replaced, although spec.restart.slowRank asks."
    )


class Progress(StatusModel):
    """Progress of the training, as the trainer of pod 0 reports it."""

    step: Step
    total_steps: Step | None = None
    epoch: Step | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    pace: Annotated[Pace | None, OR_NONE] = None
    updated_at: Time = Field(description="When this step was first seen.")
    last_step_time: Time | None = Field(
        default=None, description="When a step was last completed, by the trainer's clock."
    )
    trained_seconds: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
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
    done_at: Time | None = Field(
        default=None,
        description=(
            "When the trainer reported that it is done: its result is safe, and a pod that is lost "
            "after that counts as completed."
        ),
    )

    @property
    def has_last_step(self) -> bool:
        """True if the trainer made all its steps. The script may still evaluate or export."""
        return self.total_steps is not None and 0 < self.total_steps <= self.step


class CheckpointRecord(StatusModel):
    """Latest checkpoint that the trainer reports."""

    step: Step
    path: Line = ""
    time: Time | None = None


class MemoryCheckpointRecord(StatusModel):
    """Snapshots in the memory of the pods, as the launcher of rank 0's pod reports them."""

    step: Step | None = Field(
        default=None, description="Newest step of which all snapshots and copies are stored."
    )
    time: Time | None = Field(default=None, description="When they were.")
    size_bytes: Step | None = Field(
        default=None, description="Size of that step's snapshots in the pod that has the most."
    )
    copies: Count = Field(default=0, description="How many other pods keep a copy.")
    refusal: Word = Field(default="", description="Why newer snapshots are not saved or copied.")
    restored_step: Step | None = Field(
        default=None,
        description="Step that the ranks received from memory at the latest restart, if any.",
    )
    restored_at: Time | None = Field(default=None, description="When that was decided.")
    restore_reason: Word = Field(
        default="", description="Why the ranks received no step from memory at that restart."
    )


class Goodput(StatusModel):
    """How the job spent its age: the seconds add up to accountedUntil - creationTimestamp.

    The operator writes them when the job's state changes. For a running job they do not yet include
    the time since then.
    """

    pending_seconds: Count = Field(
        default=0, description="Seconds spent waiting for nodes, or for a restart."
    )
    starting_seconds: Count = Field(
        default=0,
        description=(
            "Seconds from having nodes to the first step, or to ready pods if the trainer does not "
            "report trainedSeconds."
        ),
    )
    training_seconds: Count = 0
    lost_seconds: Count = Field(
        default=0,
        description=(
            "Seconds from failures until a step completes, and of steps that were repeated. If the "
            "trainer does not report trainedSeconds: from failures to ready pods."
        ),
    )
    suspended_seconds: Count = 0
    steps_lost: Step = Field(default=0, description="Steps that had to be repeated.")
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
