"""Models of `DDPJob.status`: the state of a job, and everything that the operator must remember."""

from ddp_operator.api.status.bookkeeping import NOTES, Bookkeeping
from ddp_operator.api.status.failures import (
    MAX_GAPS,
    Failure,
    FailureAction,
    GapReason,
    GapRecord,
)
from ddp_operator.api.status.progress import (
    CheckpointRecord,
    Goodput,
    MemoryCheckpointRecord,
    Outage,
    Pace,
    Progress,
    SlowRank,
    SlowTurn,
    Unreported,
)
from ddp_operator.api.status.status import (
    MAX_EXCLUDED,
    Condition,
    ConditionStatus,
    ConditionType,
    DDPJobStatus,
    Phase,
)

__all__ = [
    "MAX_EXCLUDED",
    "MAX_GAPS",
    "NOTES",
    "Bookkeeping",
    "CheckpointRecord",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "DDPJobStatus",
    "Failure",
    "FailureAction",
    "GapReason",
    "GapRecord",
    "Goodput",
    "MemoryCheckpointRecord",
    "Outage",
    "Pace",
    "Phase",
    "Progress",
    "SlowRank",
    "SlowTurn",
    "Unreported",
]
