"""Progress, checkpoints and goodput of a job, in `DDPJob.status`."""

from pydantic import Field

from ddp_operator.api.values.bounded import Count, Line, Name, StatusModel, Step, Time, Word


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
    updated_at: Time = Field(description="When this step was first seen.")
    last_step_time: Time | None = Field(
        default=None, description="When a step was last completed, by the trainer's clock."
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
    protection: Line = Field(
        default="",
        description=(
            "Which failures of nodes, blocks or zones would cost nothing now, and how many steps "
            "others would cost."
        ),
    )
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
    """How the job spent its age: the seconds since its creation.

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
