"""Which jobs have their ranks given out along the network, and whether that is still to be decided.

The first order of an attempt is awaited by all its pods: their launchers hold the ranks back, for a
while. A later one, after a pod was replaced, by those alone that start anew anyway.
"""

from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus

ANSWER_SECONDS: Final = 30
"""How long after the last pod's start the operator waits for a launcher's answer, and for word of
the nodes: a launcher that is there and within reach answers within seconds.
"""
HOLD_SECONDS: Final = 2 * ANSWER_SECONDS
"""How long after its start a launcher waits for the operator's word before it starts its ranks: it
may be out of reach. The rest is for clocks that differ, and for telling thousands.
"""


def follows_topology(job: DDPJob) -> bool:
    """Whether node ranks go along the network. Where pods are unlike each other they do not: none
    could take another one's place.
    """
    asked = job.spec.scheduling
    wanted = bool(asked and asked.topology)
    return wanted and job.spec.replicas > 1 and not job.spec.overrides


def is_due(job: DDPJob) -> bool:
    """Whether pods have come whose places nobody has looked at yet."""
    return follows_topology(job) and job.status.bookkeeping.ordered != present(job.status)


def is_first_due(job: DDPJob) -> bool:
    """Whether no order has been decided yet in this attempt."""
    ordered = job.status.bookkeeping.ordered
    return follows_topology(job) and ordered[:1] != (job.status.attempt,)


def present(status: DDPJobStatus) -> tuple[int, int]:
    """What an order is decided for: another one after each replacement of a pod of the group."""
    attempt, _, replaced = status.incarnation
    return attempt, replaced
