"""What all ranks of a job print, as one stream of lines."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from ddp_operator.client.cluster import PATIENCE_SECONDS
from ddp_operator.client.logs import MOST_BYTES, Follower, Line, Wanted, printed
from ddp_operator.client.seen import SeenJob
from ddp_operator.client.text import clean_output, counted
from ddp_operator.job.pods import ranks
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import UnavailableError
from ddp_operator.sdk.errors import JobGoneError
from ddp_operator.sdk.places.place import Place
from ddp_operator.views.changes import RefusedError
from ddp_operator.views.pods import Pods

MOST_PODS: Final = 32
"""Logs that are read at a time, each by a connection of its own."""
_LOOK_SECONDS: Final = 2.0
"""Between two looks at which pods there are."""
_SHORT_LOOK_SECONDS: Final = 0.2
"""The same at first, and once the job has ended."""

Look = Callable[[], Coroutine[Any, Any, tuple[SeenJob, Pods]]]


@dataclass(frozen=True)
class LogLine:
    """A line that a pod printed, without what a terminal would obey; `str` has its rank before it.

    As a `note`, it is this program's: why there is nothing of a pod.
    """

    rank: int
    """The first of the pod's ranks."""
    pod: str
    time: datetime
    text: str
    note: bool = False

    @classmethod
    def of(cls, seen: SeenJob, line: Line) -> Self:
        """A line as it was read."""
        index = line.pod.identity.index
        own = ranks.ranks(seen.job.spec, index) if seen.job else range(index, index + 1)
        text = clean_output(line.text, MOST_BYTES)
        return cls(own.start, line.pod.key.name, line.time, text, note=line.note)

    def __str__(self) -> str:
        return f"{self.rank} {'!' if self.note else '|'} {self.text}"


def wanted(tail: int | None, since_seconds: float | None) -> Wanted:
    """How much of each log is read."""
    whole = None if since_seconds is None else max(math.ceil(since_seconds), 1)
    return Wanted(tail, whole)


def chosen(seen: SeenJob, pods: Pods, only: Sequence[int]) -> list[PodState]:
    """The pods of those ranks, or all, in their order.

    Raises:
        RefusedError: no pod has such a rank.
    """
    indexes = sorted(pods.current)
    if only and seen.job is None:
        raise RefusedError(f"which pod has which rank cannot be told: {seen.problem}")
    if only and seen.job is not None:
        size = ranks.world_size(seen.job.spec)
        if not 0 <= min(only) <= max(only) < size:
            raise RefusedError(f"ranks: the job has ranks 0 to {size - 1} only")
        of_ranks = {ranks.pod_of(seen.job.spec, rank) for rank in only}
        indexes = [index for index in indexes if index in of_ranks]
    return [pods.current[index] for index in indexes]


async def until_now(
    place: Place, look: Look, wanted: Wanted, only: Sequence[int]
) -> AsyncGenerator[LogLine, None]:
    """Yield what was printed, in the order of time."""
    seen, pods = await look()
    begun = [pod for pod in chosen(seen, pods, only) if pod.started or pod.exit]
    _refuse_too_many(len(begun))
    async for line in printed(place, begun, wanted):
        yield LogLine.of(seen, line)


async def followed(
    place: Place, look: Look, wanted: Wanted, only: Sequence[int]
) -> AsyncGenerator[LogLine, None]:
    """Yield what is printed until the job ends, also by pods that take others' places.

    Raises:
        UnavailableError: the job could not be looked at for ten minutes.
    """
    clock = asyncio.get_running_loop().time
    follower, ends, pause = Follower(place, wanted), False, _SHORT_LOOK_SECONDS
    seen, pods = await look()
    reached = clock()
    _refuse_too_many(len(chosen(seen, pods, only)))
    try:
        while True:
            left_out = follower.look(chosen(seen, pods, only), MOST_PODS)
            until = clock() + (_SHORT_LOOK_SECONDS if ends else pause)
            pause = min(2 * pause, _LOOK_SECONDS)
            while clock() < until and not (ends and follower.idle):
                line = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        line = await follower.lines.get()
                if line is not None:
                    yield LogLine.of(seen, line)
            if ends and follower.idle and not left_out:
                return
            # One more look after the end: what had begun by then is read.
            ends = seen.status.finished or seen.deleting
            try:
                seen, pods = await look()
                reached = clock()
            except JobGoneError:
                ends = True
            except UnavailableError:
                if clock() - reached > PATIENCE_SECONDS:
                    raise
    finally:
        await follower.close()


def _refuse_too_many(count: int) -> None:
    if count > MOST_PODS:
        raise RefusedError(
            f"the logs of {counted(count, 'pod')} are more than the {MOST_PODS} that are read at a "
            "time: choose by ranks=[…]"
        )
