"""Which jobs order their ranks along the network, and whether an order is due.

All pods wait for the first order of an attempt: their launchers hold the ranks for a while. For a
later order, after a replacement, only pods wait that restart anyway.
"""

from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus

ANSWER_SECONDS: Final = 30
"""How long the operator waits, after the last pod's start, for a launcher's answer and for news of
nodes. A reachable launcher answers within seconds."""
HOLD_SECONDS: Final = 2 * ANSWER_SECONDS
"""How long a launcher waits for the order before it starts its ranks, since the operator may be
unreachable. The extra time covers clock differences and thousands of assignments."""


def follows_topology(job: DDPJob) -> bool:
    """Return whether ranks follow the network; pods that differ (`overrides`) cannot swap ranks."""
    return bool(job.spec.topology) and job.spec.replicas > 1 and not job.spec.overrides


def is_due(job: DDPJob) -> bool:
    """Return whether there are new pods without a decision about their order."""
    return follows_topology(job) and job.status.bookkeeping.ordered != present(job.status)


def is_first_due(job: DDPJob) -> bool:
    """Return whether this attempt has no order yet."""
    ordered = job.status.bookkeeping.ordered
    return follows_topology(job) and ordered[:1] != (job.status.attempt,)


def present(status: DDPJobStatus) -> tuple[int, int]:
    """Return what an order is decided for: the attempt and its number of replacements."""
    attempt, _, replaced = status.incarnation
    return attempt, replaced
