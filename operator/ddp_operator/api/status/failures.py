"""Failures of a job, and places of its group in which nothing trains, in `DDPJob.status`."""

from typing import Annotated, Final, Literal

from pydantic import Field

from ddp_operator.api.spec import FailureClass
from ddp_operator.api.values.bounded import (
    OR_UNKNOWN,
    Count,
    Line,
    Name,
    Number,
    Reason,
    StatusModel,
    Time,
    Word,
)

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
