"""The logs of all ranks of a job as one stream of lines."""

import contextlib
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from ddp_operator.api import ranks
from ddp_operator.api.values.text import counted
from ddp_operator.job.pods.state import PodState

from ddp_client.remote import following
from ddp_client.remote.following import Read
from ddp_client.remote.logs import MOST_BYTES, Line, Wanted, printed
from ddp_client.sdk.backends.backend import Backend
from ddp_client.sdk.errors import JobGoneError
from ddp_client.text import clean_output
from ddp_client.views.changes import RefusedError
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot

MOST_PODS: Final = 32
"""Most logs that are read at the same time; each needs a connection."""


@dataclass(frozen=True)
class LogLine:
    """A line of a pod's log, without control characters; `str` shows its rank first.

    A `note` is a message of this program: why a pod's log cannot be read.
    """

    rank: int
    """The rank named by a prefix such as `[rank3]: `, which is removed; otherwise the pod's first
    rank.
    """
    pod: str
    time: datetime
    text: str
    note: bool = False

    @classmethod
    def of(cls, job: JobSnapshot, line: Line) -> Self:
        """Return a line of the client as a `LogLine`."""
        index = line.pod.identity.index
        own = ranks.ranks(job.parsed.spec, index) if job.parsed else range(index, index + 1)
        text = clean_output(line.text, MOST_BYTES)
        rank = own.start if line.rank is None else line.rank
        return cls(rank, line.pod.key.name, line.time, text, note=line.note)

    def __str__(self) -> str:
        return f"{self.rank} {'!' if self.note else '|'} {self.text}"


def wanted(tail: int | None, since_seconds: float | None) -> Wanted:
    """Return the part of each log to read."""
    whole = None if since_seconds is None else max(math.ceil(since_seconds), 1)
    return Wanted(tail, whole)


def chosen(job: JobSnapshot, pods: Pods, only: Sequence[int]) -> list[PodState]:
    """Return the pods of these ranks in order; without ranks, all pods.

    Raises:
        RefusedError: the job has no such rank, or its spec cannot be read.
    """
    indexes = sorted(pods.current)
    if only and job.parsed is None:
        raise RefusedError(f"ranks: cannot tell which pod has which rank: {job.problem}")
    if only and job.parsed is not None:
        size = ranks.world_size(job.parsed.spec)
        if not 0 <= min(only) <= max(only) < size:
            raise RefusedError(f"ranks: the job has ranks 0 to {size - 1} only")
        of_ranks = {ranks.pod_of(job.parsed.spec, rank) for rank in only}
        indexes = [index for index in indexes if index in of_ranks]
    return [pods.current[index] for index in indexes]


async def until_now(
    backend: Backend, read: Read, wanted: Wanted, only: Sequence[int]
) -> AsyncGenerator[LogLine, None]:
    """Yield the lines so far, sorted by time."""
    job, pods = await read()
    begun = [pod for pod in chosen(job, pods, only) if pod.started or pod.exit]
    _refuse_too_many(len(begun))
    async for line in printed(backend, begun, wanted):
        if line.may_be_of(only):
            yield LogLine.of(job, line)


async def followed(
    backend: Backend, read: Read, wanted: Wanted, only: Sequence[int]
) -> AsyncGenerator[LogLine, None]:
    """Yield lines until the job ends, including those of replacement pods.

    Raises:
        UnavailableError: the job could not be read for ten minutes.
    """
    first = await read()
    _refuse_too_many(len(chosen(*first, only)))
    ahead = [first]

    async def next_read() -> tuple[JobSnapshot, Pods]:
        return ahead.pop() if ahead else await read()

    def choose(job: JobSnapshot, pods: Pods) -> list[PodState]:
        return chosen(job, pods, only)

    stream = following.followed(backend, next_read, choose, wanted, MOST_PODS, gone=JobGoneError)
    async with contextlib.aclosing(stream):
        async for job, lines in stream:
            for line in lines:
                if line.may_be_of(only):
                    yield LogLine.of(job, line)


def _refuse_too_many(count: int) -> None:
    if count > MOST_PODS:
        raise RefusedError(
            f"the job has {counted(count, 'pod')}, but at most {MOST_PODS} logs can be read at a "
            "time: choose with ranks=[…]"
        )
