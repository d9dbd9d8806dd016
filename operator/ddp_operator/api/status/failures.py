"""Failures of a job, and gaps: places of its group in which nothing trains."""

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
    """The end of an attempt, or of one of its pods."""

    time: Time
    attempt: Count
    index: Count = Field(description="Replica index of the pod: its node rank.")
    rank: Count | None = Field(default=None, description="Global rank that failed, if known.")
    pod: Annotated[Name, OR_UNKNOWN]
    container: Name = ""
    node: Name = ""
    boot_id: Word = Field(
        default="", description="Boot ID of the node that the failure is charged to, if known."
    )
    exit_code: Number | None = None
    signal: Number | None = None
    reason: Reason
    message: Line = ""
    class_: FailureClass = Field(
        description=(
            "Class of the failure, by its cause: Disruption (the cluster or a person), Application "
            "(the training), Configuration, or Infrastructure (the node)."
        )
    )
    action: FailureAction = Field(
        default="RestartGang", description="What the operator did about it."
    )
    charged: bool = Field(default=False, description="true: it counts against maxRestarts.")
    continued: bool | None = Field(
        default=None,
        description="true: part of the failure before it; not charged again.",
    )

    @property
    def disruption(self) -> bool:
        """True if the cluster or a person took the pod away: the training is not at fault."""
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
            "Paused: the operator waits before it creates the pod. Refused: the API server refuses "
            "the pod. Unscheduled: it has no node. NotStarted: it has a node but no process. "
            "CannotStart: the kubelet says why. Initializing: its init containers run. Starting: "
            "it is not ready. Silent: its node or its launcher does not answer. Leaving: it is "
            "about to end. Failed: it has ended. Lost: it was taken away."
        )
    )
    since: Time = Field(description="When the operator first saw this reason.")
    node: Name = ""
