"""Models of `DDPJob.status`: the state of a job, and everything that the operator must remember."""

from ddp_operator.api.status.bookkeeping import (
    MAX_METRICS,
    NOTES,
    Bookkeeping,
    Pace,
    SlowTurn,
    Stopwatch,
)
from ddp_operator.api.status.decisive import DECISIVE, decisive_names
from ddp_operator.api.status.failures import (
    MAX_GAPS,
    Failure,
    FailureAction,
    GapReason,
    GapRecord,
    NodeRecord,
)
from ddp_operator.api.status.progress import (
    CheckpointRecord,
    Goodput,
    MemoryCheckpointRecord,
    Progress,
    SlowRank,
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
    "MAX_EXCLUDED",
    "MAX_GAPS",
    "MAX_METRICS",
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
    "NodeRecord",
    "Pace",
    "Phase",
    "Progress",
    "SlowRank",
    "SlowTurn",
    "Stopwatch",
    "decisive_names",
]
