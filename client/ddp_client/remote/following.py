"""Follow the logs of a job's pods until the job ends, including replacement pods."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Final

from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import UnavailableError

from ddp_client.remote.cluster import PATIENCE_SECONDS
from ddp_client.remote.logs import Follower, Line, LogSource, Wanted
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot

POLL_SECONDS: Final = 2.0
"""Seconds between two reads of the job and its pods."""
SHORT_POLL_SECONDS: Final = 0.2
"""The same at the start, and after the job has ended."""
MOST_HELD: Final = 1000
"""Most lines that are returned together."""

Read = Callable[[], Coroutine[Any, Any, tuple[JobSnapshot, Pods]]]
Choose = Callable[[JobSnapshot, Pods], list[PodState]]


async def followed(
    source: LogSource,
    read: Read,
    choose: Choose,
    wanted: Wanted,
    most: int,
    *,
    gone: type[Exception],
    window_seconds: float = 0,
    on_update: Callable[[JobSnapshot, int], None] = lambda _, __: None,
) -> AsyncGenerator[tuple[JobSnapshot, Sequence[Line]], None]:
    """Yield the log lines of the chosen pods; lines within `window_seconds` come sorted by time.

    `read` reads the job and its pods, and raises `gone` when the job no longer exists. After each
    read, `on_update` receives the job and the number of pods that are left out for now.

    Raises:
        UnavailableError: the job could not be read for ten minutes.
    """
    clock = asyncio.get_running_loop().time
    follower, ends, pause = Follower(source, wanted), False, SHORT_POLL_SECONDS
    job, pods = await read()
    reached = clock()
    try:
        while True:
            left_out = follower.update(choose(job, pods), most)
            on_update(job, left_out)
            until = clock() + (SHORT_POLL_SECONDS if ends else pause)
            pause = min(2 * pause, POLL_SECONDS)
            while clock() < until and not (ends and follower.idle):
                if lines := await _together(follower, until, window_seconds):
                    yield job, lines
            if ends and follower.idle and not left_out:
                return
            # One more read after the end: it finds pods that started just before.
            ends = job.status.finished or job.deleting
            try:
                job, pods = await read()
                reached = clock()
            except gone:
                ends = True
            except UnavailableError:
                if clock() - reached > PATIENCE_SECONDS:
                    raise
    finally:
        await follower.close()


async def _together(follower: Follower, until: float, seconds: float) -> list[Line]:
    """Return the next line, if one arrives in time, and the lines within `seconds` after it."""
    lines: list[Line] = []
    try:
        async with asyncio.timeout_at(until):
            lines.append(await follower.lines.get())
        async with asyncio.timeout(seconds):
            while seconds and len(lines) < MOST_HELD and not follower.idle:
                lines.append(await follower.lines.get())
    except TimeoutError:
        pass
    return _in_order(lines)


def _in_order(lines: Sequence[Line]) -> list[Line]:
    """Sort lines by time, but keep the order of each pod's own lines."""
    latest: dict[int, datetime] = {}
    timed: list[tuple[datetime, Line]] = []
    for line in lines:
        index = line.pod.identity.index
        time = latest[index] = max(line.time, latest.get(index, line.time))
        timed.append((time, line))
    return [line for _, line in sorted(timed, key=lambda one: one[0])]
