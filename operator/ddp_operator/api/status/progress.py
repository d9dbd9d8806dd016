"""Progress, checkpoints and goodput of a job, in `DDPJob.status`."""

from typing import Annotated

from pydantic import Field

from ddp_operator.api.values.bounded import (
    OR_NONE,
    Count,
    Line,
    StatusModel,
    Step,
    Time,
)


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
