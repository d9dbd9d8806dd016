"""The logs of a job's pods until the job ends, also of pods that take others' places."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Final

from ddp_operator.client.cluster import PATIENCE_SECONDS
from ddp_operator.client.logs import Follower, Line, LogSource, Wanted
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import UnavailableError
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.snapshot import JobSnapshot

LOOK_SECONDS: Final = 2.0
"""Between two looks at which pods there are."""
SHORT_LOOK_SECONDS: Final = 0.2
"""The same at first, and once the job has ended."""
MOST_HELD: Final = 1000
"""Lines that are given out together."""

Look = Callable[[], Coroutine[Any, Any, tuple[JobSnapshot, Pods]]]
Choose = Callable[[JobSnapshot, Pods], list[PodState]]


async def followed(
    source: LogSource,
    look: Look,
    choose: Choose,
    wanted: Wanted,
    most: int,
    *,
    gone: type[Exception],
    window_seconds: float = 0,
    on_look: Callable[[JobSnapshot, int], None] = lambda _, __: None,
) -> AsyncGenerator[tuple[JobSnapshot, Sequence[Line]], None]:
    """Yield what the chosen pods print, the lines that come within `window_seconds` together
    and by time.

    `look` raises `gone` when there is no such job any more. `on_look` is told of the job and of how
    many pods are left out for now, whenever it was looked at.

    Raises:
        UnavailableError: the job could not be looked at for ten minutes.
    """
    clock = asyncio.get_running_loop().time
    follower, ends, pause = Follower(source, wanted), False, SHORT_LOOK_SECONDS
    job, pods = await look()
    reached = clock()
    try:
        while True:
            left_out = follower.look(choose(job, pods), most)
            on_look(job, left_out)
            until = clock() + (SHORT_LOOK_SECONDS if ends else pause)
            pause = min(2 * pause, LOOK_SECONDS)
            while clock() < until and not (ends and follower.idle):
                if lines := await _together(follower, until, window_seconds):
                    yield job, lines
            if ends and follower.idle and not left_out:
                return
            # One more look after the end: what had begun by then is read.
            ends = job.status.finished or job.deleting
            try:
                job, pods = await look()
                reached = clock()
            except gone:
                ends = True
            except UnavailableError:
                if clock() - reached > PATIENCE_SECONDS:
                    raise
    finally:
        await follower.close()


async def _together(follower: Follower, until: float, seconds: float) -> list[Line]:
    """The next line, if one comes in time, and those that come within seconds of it."""
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
    """By time, as far as that leaves the order of each pod's own lines."""
    latest: dict[int, datetime] = {}
    timed: list[tuple[datetime, Line]] = []
    for line in lines:
        index = line.pod.identity.index
        time = latest[index] = max(line.time, latest.get(index, line.time))
        timed.append((time, line))
    return [line for _, line in sorted(timed, key=lambda one: one[0])]
