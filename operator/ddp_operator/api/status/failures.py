"""Failures of a job, and gaps: places of its group in which nothing trains."""

from typing import Annotated, Final, Literal

from pydantic import Field

from ddp_operator.api.constants import MAX_REPLICAS
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
    first,
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
    exit_code: Number | None = None
    signal: Number | None = None
    reason: Reason
    message: Line = ""
    class_: FailureClass = Field(
        description=(
            "Class of the failure, by its cause: Disruption (the cluster or a person), Application "
            "(the training), Configuration, or Infrastructure (the node, or a server or storage "
            "outside of the job)."
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


class NodeRecord(StatusModel):
    """What a node did to the job's pods since it started."""

    name: Name
    boot_id: Word = Field(default="", description="Its boot ID, if known. A reboot ends this.")
    failures: Count = 0
    avoided: Literal["", "Preferred", "Required", "Dropped"] = Field(
        default="",
        description=(
            "Preferred: pods avoid it if another node fits. Required: they must not run there, "
            "since a device is broken. Dropped: they must not either, but no other node took them, "
            "so they only avoid it. Empty: its number of failures and its signals decide."
        ),
    )


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
MAX_GAPS: Final = 64


class GapRecord(StatusModel):
    """Node ranks in which nothing has trained since the same time, for the same reason."""

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
    node_ranks: Annotated[str, first(6 * MAX_REPLICAS)] = Field(
        default="", description="Node ranks, such as 0-31,40."
    )
