"""Models of `DDPJob.status`: the state of a job, and everything that the operator must remember."""

from ddp_operator.api.status.bookkeeping import NOTES, Bookkeeping
from ddp_operator.api.status.decisive import DECISIVE, decisive_names
from ddp_operator.api.status.failures import (
    MAX_CLOCKS,
    MAX_GAPS,
    Failure,
    FailureAction,
    GapClock,
    GapReason,
    GapRecord,
    NodeRecord,
)
from ddp_operator.api.status.progress import (
    CheckpointRecord,
    Goodput,
    MemoryCheckpointRecord,
    Pace,
    Progress,
    SlowRank,
    SlowTurn,
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
    "DECISIVE",
    "MAX_CLOCKS",
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
    "GapClock",
    "GapReason",
    "GapRecord",
    "Goodput",
    "MemoryCheckpointRecord",
    "NodeRecord",
    "Pace",
    "Phase",
    "Progress",
    "SlowRank",
    "SlowTurn",
    "decisive_names",
]
