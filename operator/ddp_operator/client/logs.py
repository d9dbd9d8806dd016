"""The logs of a job's pods as one stream.

A pod's log is read from where it was left whenever nobody reads it and it may have more: so a
connection that breaks, a pod that starts late and one that takes another's place are the same case.
"""

import asyncio
import contextlib
import heapq
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import ClusterError, Key, UnavailableError
from ddp_operator.views.text import clean

MOST_BYTES: Final = 16 * 1024
"""Of one line: container runtimes cut there, too."""
_SILENT_SECONDS: Final = 3600.0
"""Without output for so long the connection is made anew; the kernel finds dead ones sooner."""
_ANSWER_SECONDS: Final = 30.0
_PREFIX: Final = re.compile(r"\[rank(\d{1,6})\]: ")
"""Before each line of torch's errors, and where `DDP_LOG_PREFIX` is `rank`, before all lines."""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class LogSource(Protocol):
    """Where logs are read: `client.cluster.Cluster`, or what looks like it."""

    def log(
        self, pod: Key, container: str, options: Mapping[str, str], *, idle_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield a container's log piece by piece, each line with its time."""


class Lines:
    """Cuts pieces into lines of at most `MOST_BYTES`; what a longer one has beyond is dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece ends."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = self._rest + lines[0]
            self._rest = rest[:MOST_BYTES]
        else:
            self._rest = (self._rest + rest)[:MOST_BYTES]
        return [line[:MOST_BYTES] for line in lines]

    def end(self) -> list[bytes]:
        """A last line that was not ended."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


@dataclass(frozen=True)
class Line:
    """What a pod printed; or, as a `note`, why there is nothing of it."""

    pod: PodState
    time: datetime
    text: str
    note: bool = False
    rank: int | None = None
    """Who printed it, if the line says so; None: any of the pod's processes."""

    def may_be_of(self, ranks: Collection[int]) -> bool:
        """Whether one of these ranks may have printed it; of none: whether anybody has."""
        return not ranks or self.rank is None or self.rank in ranks


def read_line(pod: PodState, raw: bytes, before: datetime) -> Line:
    """Take time and rank off a line; one without a time has that of the line before it."""
    text = raw.decode(errors="replace")
    stamp, _, rest = text.partition(" ")
    try:
        time = datetime.fromisoformat(stamp)
    except ValueError:
        time, rest = before, text
    rank = None
    if prefix := _PREFIX.match(rest):
        rank, rest = int(prefix[1]), rest[prefix.end() :]
    return Line(pod, time.replace(tzinfo=time.tzinfo or UTC), rest, rank=rank)


@dataclass(frozen=True)
class Wanted:
    """How much of each log is shown."""

    tail: int | None = None
    since_seconds: int | None = None

    @property
    def options(self) -> dict[str, str]:
        """As the API server understands it."""
        asked = {"tailLines": self.tail, "sinceSeconds": self.since_seconds}
        return {name: str(value) for name, value in asked.items() if value is not None}


async def printed(
    cluster: LogSource, pods: Iterable[PodState], wanted: Wanted
) -> AsyncIterator[Line]:
    """Yield what pods have printed until now, in the order of time; one line of each is held."""
    async with contextlib.AsyncExitStack() as stack:
        sources: list[AsyncGenerator[Line, None]] = []
        for pod in pods:
            source = _lines(cluster, pod, wanted.options, idle_seconds=_ANSWER_SECONDS)
            sources.append(await stack.enter_async_context(contextlib.aclosing(source)))
        firsts = await asyncio.gather(*(_next(source) for source in sources))
        heap = [(line.time, order, line) for order, line in enumerate(firsts) if line is not None]
        heapq.heapify(heap)
        while heap:
            time, order, line = heap[0]
            yield line
            following = await _next(sources[order])
            if following is None:
                heapq.heappop(heap)
            else:  # none comes before the one that it stands behind
                heapq.heapreplace(heap, (max(following.time, time), order, following))


async def _next(source: AsyncGenerator[Line, None]) -> Line | None:
    return await anext(source, None)


class Follower:
    """Reads the logs of whatever pods there are, and goes on where it was."""

    def __init__(self, cluster: LogSource, wanted: Wanted) -> None:
        self.lines: asyncio.Queue[Line] = asyncio.Queue(maxsize=1000)
        self._cluster = cluster
        self._wanted = wanted
        self._last: dict[Key, datetime] = {}
        self._done: set[Key] = set()
        self._noted: dict[Key, str] = {}
        self._reading: dict[Key, asyncio.Task[None]] = {}

    def look(self, pods: Iterable[PodState], most: int) -> int:
        """Read on of those that have more to say; returns how many are left out for now."""
        for key in [key for key, task in self._reading.items() if task.done()]:
            self._reading.pop(key).result()
        left_out = 0
        for pod in pods:
            begun = pod.started is not None or pod.exit is not None
            if not begun or pod.key in self._done or pod.key in self._reading:
                continue
            if len(self._reading) >= most:
                left_out += 1
            else:
                self._reading[pod.key] = asyncio.create_task(self._read(pod))
        return left_out

    @property
    def idle(self) -> bool:
        """Whether no log is being read, and all lines were taken."""
        return self.lines.empty() and all(task.done() for task in self._reading.values())

    async def close(self) -> None:
        """Stop reading."""
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    async def _read(self, pod: PodState) -> None:
        last = self._last.get(pod.key)
        options = {**self._wanted.options, "follow": "true"}
        if last is not None:  # whole seconds: what was shown of that one is left out below
            since = last.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            options = {"follow": "true", "sinceTime": since}
        source = _lines(self._cluster, pod, options, idle_seconds=_SILENT_SECONDS)
        broken = False
        async with contextlib.aclosing(source):
            async for line in source:
                if line.note:
                    broken = True
                    if self._noted.get(pod.key) != line.text:  # and not at every look
                        await self.lines.put(line)
                    self._noted[pod.key] = line.text
                    continue
                if last is None or line.time > last:
                    await self.lines.put(line)
                if line.time > self._last.get(pod.key, _LONG_AGO):
                    self._last[pod.key] = line.time
        if pod.exit is not None and not broken:
            self._done.add(pod.key)


async def _lines(
    cluster: LogSource, pod: PodState, options: dict[str, str], *, idle_seconds: float
) -> AsyncGenerator[Line, None]:
    """A pod's lines; a log that cannot be read is a note, and no reason to lose the others'."""
    lines, before = Lines(), _LONG_AGO
    pieces = cluster.log(pod.key, pod.container, options, idle_seconds=idle_seconds)
    try:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                for raw in lines.feed(piece):
                    line = read_line(pod, raw, before)
                    before = line.time
                    yield line
        for raw in lines.end():
            yield read_line(pod, raw, before)
    except ClusterError as error:
        text = "the connection broke" if isinstance(error, UnavailableError) else "no log"
        note = f"{text}: {clean(error.message, 300)}"
        yield replace(Line(pod, before, note), note=True)
