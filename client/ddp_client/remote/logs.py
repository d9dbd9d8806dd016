"""The logs of a job's pods as one stream.

Whenever a log may have more lines and is not being read, reading resumes after its last line. This
covers broken connections, pods that start late, and replacement pods.
"""

import asyncio
import contextlib
import heapq
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol, Self

from ddp_operator.api.values.text import clean
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import ClusterError, Key, UnavailableError

MOST_BYTES: Final = 16 * 1024
"""Most bytes of a line; container runtimes cut lines at the same length."""
_SILENT_SECONDS: Final = 3600.0
"""Reconnect after this long without output; the kernel finds dead connections sooner."""
_ANSWER_SECONDS: Final = 30.0
_PREFIX: Final = re.compile(r"\[rank(\d{1,6})\]: ")
"""The prefix of torch's error lines, and with `DDP_LOG_PREFIX=rank` of all lines."""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class LogSource(Protocol):
    """A source of logs, such as `client.cluster.Cluster`."""

    def log(
        self, pod: Key, container: str, options: Mapping[str, str], *, idle_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield a container's log in pieces, each line with its time."""


class Lines:
    """Splits pieces into lines, and cuts each line at `MOST_BYTES`."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Add a piece, and return the lines that it completes."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = self._rest + lines[0]
            self._rest = rest[:MOST_BYTES]
        else:
            self._rest = (self._rest + rest)[:MOST_BYTES]
        return [line[:MOST_BYTES] for line in lines]

    def end(self) -> list[bytes]:
        """Return the last line if it has no line break."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


@dataclass(frozen=True)
class Line:
    """A line of a pod's log; or, as a `note`, why the log cannot be read."""

    pod: PodState
    time: datetime
    text: str
    note: bool = False
    rank: int | None = None
    """The rank that printed it, if the line names one; None: any process of the pod."""

    def may_be_of(self, ranks: Collection[int]) -> bool:
        """Tell whether one of these ranks may have printed it; always true without ranks."""
        return not ranks or self.rank is None or self.rank in ranks


def read_line(pod: PodState, raw: bytes, before: datetime) -> Line:
    """Split time and rank from a line; a line without a time gets the time of the line before."""
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
    """The part of each log to show."""

    tail: int | None = None
    since_seconds: int | None = None

    @classmethod
    def of(cls, tail: int | None, since_seconds: float | None) -> Self:
        """Return the part of whole seconds that the API server knows."""
        return cls(tail, None if since_seconds is None else max(math.ceil(since_seconds), 1))

    @property
    def options(self) -> dict[str, str]:
        """The API server's query parameters."""
        asked = {"tailLines": self.tail, "sinceSeconds": self.since_seconds}
        return {name: str(value) for name, value in asked.items() if value is not None}


async def printed(
    cluster: LogSource, pods: Iterable[PodState], wanted: Wanted
) -> AsyncIterator[Line]:
    """Yield the lines so far, sorted by time; only one line of each pod is held in memory."""
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
            else:  # a pod's lines keep their order
                heapq.heapreplace(heap, (max(following.time, time), order, following))


async def _next(source: AsyncGenerator[Line, None]) -> Line | None:
    return await anext(source, None)


class Follower:
    """Reads the logs of changing pods; resumes each log after its last line."""

    def __init__(self, cluster: LogSource, wanted: Wanted) -> None:
        self.lines: asyncio.Queue[Line] = asyncio.Queue(maxsize=1000)
        self._cluster = cluster
        self._wanted = wanted
        self._last: dict[Key, datetime] = {}
        self._done: set[Key] = set()
        self._noted: dict[Key, str] = {}
        self._reading: dict[Key, asyncio.Task[None]] = {}

    def update(self, pods: Iterable[PodState], most: int) -> int:
        """Start reading logs that may have more lines; return how many pods must wait."""
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
        """True when no log is being read and all lines were consumed."""
        return self.lines.empty() and all(task.done() for task in self._reading.values())

    async def close(self) -> None:
        """Stop reading."""
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    async def _read(self, pod: PodState) -> None:
        last = self._last.get(pod.key)
        options = {**self._wanted.options, "follow": "true"}
        if last is not None:  # whole seconds: lines that were shown already are skipped below
            since = last.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            options = {"follow": "true", "sinceTime": since}
        source = _lines(self._cluster, pod, options, idle_seconds=_SILENT_SECONDS)
        broken = False
        async with contextlib.aclosing(source):
            async for line in source:
                if line.note:
                    broken = True
                    if self._noted.get(pod.key) != line.text:  # report each problem once
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
    """Yield a pod's lines; a log that cannot be read yields a note and does not stop the others."""
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
