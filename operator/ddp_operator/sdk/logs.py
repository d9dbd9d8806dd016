"""What all ranks of a job print, as one stream of lines."""

import contextlib
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from ddp_operator.client import following
from ddp_operator.client.following import Look
from ddp_operator.client.logs import MOST_BYTES, Line, Wanted, printed
from ddp_operator.job.pods import ranks
from ddp_operator.job.pods.state import PodState
from ddp_operator.sdk.backends.backend import Backend
from ddp_operator.sdk.errors import JobGoneError
from ddp_operator.views.changes import RefusedError
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import clean_output, counted

MOST_PODS: Final = 32
"""Logs that are read at a time, each by a connection of its own."""


@dataclass(frozen=True)
class LogLine:
    """A line that a pod printed, without what a terminal would obey; `str` has its rank before it.

    As a `note`, it is this program's: why there is nothing of a pod.
    """

    rank: int
    """Who printed it, if the line begins with `[rank3]: `, which is taken off; else the first of
    the pod's ranks.
    """
    pod: str
    time: datetime
    text: str
    note: bool = False

    @classmethod
    def of(cls, job: JobSnapshot, line: Line) -> Self:
        """A line as it was read."""
        index = line.pod.identity.index
        own = ranks.ranks(job.parsed.spec, index) if job.parsed else range(index, index + 1)
        text = clean_output(line.text, MOST_BYTES)
        rank = own.start if line.rank is None else line.rank
        return cls(rank, line.pod.key.name, line.time, text, note=line.note)

    def __str__(self) -> str:
        return f"{self.rank} {'!' if self.note else '|'} {self.text}"


def wanted(tail: int | None, since_seconds: float | None) -> Wanted:
    """How much of each log is read."""
    whole = None if since_seconds is None else max(math.ceil(since_seconds), 1)
    return Wanted(tail, whole)


def chosen(job: JobSnapshot, pods: Pods, only: Sequence[int]) -> list[PodState]:
    """The pods of those ranks, or all, in their order.

    Raises:
        RefusedError: no pod has such a rank.
    """
    indexes = sorted(pods.current)
    if only and job.parsed is None:
        raise RefusedError(f"which pod has which rank cannot be told: {job.problem}")
    if only and job.parsed is not None:
        size = ranks.world_size(job.parsed.spec)
        if not 0 <= min(only) <= max(only) < size:
            raise RefusedError(f"ranks: the job has ranks 0 to {size - 1} only")
        of_ranks = {ranks.pod_of(job.parsed.spec, rank) for rank in only}
        indexes = [index for index in indexes if index in of_ranks]
    return [pods.current[index] for index in indexes]


async def until_now(
    backend: Backend, look: Look, wanted: Wanted, only: Sequence[int]
) -> AsyncGenerator[LogLine, None]:
    """Yield what was printed, in the order of time."""
    job, pods = await look()
    begun = [pod for pod in chosen(job, pods, only) if pod.started or pod.exit]
    _refuse_too_many(len(begun))
    async for line in printed(backend, begun, wanted):
        if line.may_be_of(only):
            yield LogLine.of(job, line)


async def followed(
    backend: Backend, look: Look, wanted: Wanted, only: Sequence[int]
) -> AsyncGenerator[LogLine, None]:
    """Yield what is printed until the job ends, also by pods that take others' places.

    Raises:
        UnavailableError: the job could not be looked at for ten minutes.
    """
    first = await look()
    _refuse_too_many(len(chosen(*first, only)))
    ahead = [first]

    async def next_look() -> tuple[JobSnapshot, Pods]:
        return ahead.pop() if ahead else await look()

    def choose(job: JobSnapshot, pods: Pods) -> list[PodState]:
        return chosen(job, pods, only)

    read = following.followed(backend, next_look, choose, wanted, MOST_PODS, gone=JobGoneError)
    async with contextlib.aclosing(read):
        async for job, lines in read:
            for line in lines:
                if line.may_be_of(only):
                    yield LogLine.of(job, line)


def _refuse_too_many(count: int) -> None:
    if count > MOST_PODS:
        raise RefusedError(
            f"the logs of {counted(count, 'pod')} are more than the {MOST_PODS} that are read at a "
            "time: choose by ranks=[…]"
        )
