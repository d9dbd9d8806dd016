"""Remembers which pods have ended well, since anybody may delete them while others still train."""

import re
from collections.abc import Iterable, Set
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.job.membership import world
from ddp_operator.job.pods.state import PodState

_INDEX: Final = re.compile("[0-9]{1,18}")

SETTLED_SECONDS: Final = 5
"""How long after its end a pod is put on record: as a rule the others have ended by then too, and
the job with them, which needs no record. A node's clock may be wrong by as much."""


def format_indexes(indices: Iterable[int]) -> str:
    """Indices as a Job's `completedIndexes` has them, such as `0-2,5`."""
    return world.format_slots(sorted(indices))


def read(text: str, *, below: int) -> frozenset[int]:
    """What `format_indexes` has written; what else it may be, means nothing."""
    found: set[int] = set()
    end = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (_INDEX.fullmatch(first) and _INDEX.fullmatch(last or first)):
            continue
        begin = max(int(first), end)  # they are in order, so that none is gone through twice
        end = max(min(int(last or first) + 1, below), end)
        found.update(range(begin, end))
    return frozenset(found)


def settled(pods: Iterable[PodState], now: datetime) -> Set[int]:
    """Indices of those that have ended well, and not only now."""
    return {pod.identity.index for pod in pods if pod.succeeded and not _is_news(pod, now)}


def next_settled_at(pods: Iterable[PodState], now: datetime) -> datetime | None:
    """When another one will be settled; None while none is about to be."""
    ends = (pod.exit.finished for pod in pods if pod.exit and pod.succeeded and _is_news(pod, now))
    due = (end + timedelta(seconds=SETTLED_SECONDS) for end in ends if end)
    return min(due, default=None)


def _is_news(pod: PodState, now: datetime) -> bool:
    finished = pod.exit.finished if pod.exit else None
    return finished is not None and abs(now - finished) < timedelta(seconds=SETTLED_SECONDS)
