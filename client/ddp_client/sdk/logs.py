"""The logs of all ranks of a job as one stream of lines."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from ddp_operator.api.values.text import counted
from ddp_operator.job.pods.state import PodState

from ddp_client.remote import following
from ddp_client.remote.following import Read
from ddp_client.remote.logs import MOST_BYTES, Line, Wanted, printed
from ddp_client.sdk.backends.backend import Backend
from ddp_client.sdk.errors import JobGoneError
from ddp_client.text import clean_output
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.refused import RefusedError

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
        text = clean_output(line.text, MOST_BYTES)
        own = job.ranks_of(line.pod.identity.index)
        rank = own.start if line.rank is None else line.rank
        return cls(rank, line.pod.key.name, line.time, text, note=line.note)

    def __str__(self) -> str:
        return f"{self.rank} {'!' if self.note else '|'} {self.text}"


async def until_now(
    backend: Backend, read: Read, wanted: Wanted, only: Sequence[int]
) -> AsyncGenerator[LogLine, None]:
    """Yield the lines so far, sorted by time."""
    job, pods = await read()
    begun = [pod for pod in pods.of_ranks(job, only) if pod.started or pod.exit]
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
    _refuse_too_many(len(first[1].of_ranks(first[0], only)))
    ahead = [first]

    async def next_read() -> tuple[JobSnapshot, Pods]:
        return ahead.pop() if ahead else await read()

    def choose(job: JobSnapshot, pods: Pods) -> list[PodState]:
        return pods.of_ranks(job, only)

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
