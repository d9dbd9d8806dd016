"""Record which pods completed, since anybody may delete them while others still train."""

from collections.abc import Iterable, Set
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.job.membership import world
from ddp_operator.job.pods.state import PodState

SETTLED_SECONDS: Final = 5
"""How long after its end a pod is recorded. Usually the other pods have ended by then, and the job
too, which needs no record. A node's clock may be wrong by as much."""


def read(text: str, *, below: int) -> frozenset[int]:
    """Parse indexes as in a Job's `completedIndexes`, such as `0-2,5`; skip anything invalid."""
    return frozenset(index for index in world.read_slots(text) if index < below)


def settled(pods: Iterable[PodState], now: datetime) -> Set[int]:
    """Return the indexes of pods that completed some time ago."""
    return {pod.identity.index for pod in pods if pod.succeeded and not _is_news(pod, now)}


def next_settled_at(pods: Iterable[PodState], now: datetime) -> datetime | None:
    """Return when another pod will be settled; None if none is about to be."""
    ends = (pod.exit.finished for pod in pods if pod.exit and pod.succeeded and _is_news(pod, now))
    due = (end + timedelta(seconds=SETTLED_SECONDS) for end in ends if end)
    return min(due, default=None)


def _is_news(pod: PodState, now: datetime) -> bool:
    finished = pod.exit.finished if pod.exit else None
    return finished is not None and abs(now - finished) < timedelta(seconds=SETTLED_SECONDS)
