"""Brings what ranks print to the pod's log, whole lines at a time (`lines`).

Each rank has its own pipes, which one thread of the launcher reads. It holds little: when nobody
reads the log, the pipes fill, and ranks wait in `print` as they would without the launcher. What a
rank printed is in its pipe when it dies, however it dies. It is lost only if the launcher itself is
killed, and then so is the pod.

A pod with one rank has pipes, too. Its lines cannot mix with those of other ranks, but with the
launcher's, and one way is easier to trust than two.

A terminal is handed to ranks as it is, because progress bars, colours and debuggers need one.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import select
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.launcher.output.last_words import KEPT_BYTES
from ddp_trainer.launcher.output.lines import LineMerger, Writer
from ddp_trainer.system.logs import flush_streams

PREFIX_VARIABLE: Final = "DDP_LOG_PREFIX"
"""Set to `rank`, it has each line begin with its rank, as errors of torch do: `[rank3]: `."""
_CHUNK_BYTES: Final = 64 * 1024
"""As much as a pipe holds."""
_GATHER_SECONDS: Final = 0.02
"""How long to let text gather in the pipes where little is printed: a look at the pipes costs more
than what there is in them."""
_ANSWER_SECONDS: Final = 5.0
"""How long the end of a rank may wait for a log that is not read."""


class Streams(NamedTuple):
    """File descriptors that are to be a process's stdout and stderr."""

    stdout: int
    stderr: int

    def close(self) -> None:
        """Leave them to the process that has them by now."""
        for fd in {*self}:
            os.close(fd)


OWN_STREAMS: Final = Streams(1, 2)
"""Those of this process."""


@dataclass(eq=False)
class _Log:
    """The launcher's own stdout or stderr, or both where they are one file."""

    fd: int
    lines: LineMerger = field(default_factory=LineMerger)

    def write(self) -> None:
        """Write what is due; wait while the log is not read."""
        text = memoryview(self.lines.take(now=time.monotonic()))
        while text:
            try:
                text = text[os.write(self.fd, text) :]
            except BlockingIOError:
                select.select([], [self.fd], [])
            except OSError:  # the disk is full, or the reader gone: no reason to stop training
                return


@dataclass(eq=False)
class _Source:
    """A pipe that a process prints into."""

    fd: int
    """The end to read from."""
    writer: Writer
    log: _Log
    end: bytearray = field(default_factory=bytearray)
    """The last that was read."""


class RankOutput:
    """What one rank prints, until its end."""

    def __init__(self, output: Output, rank: int) -> None:
        """Raises OSError: there are too many open files."""
        self._output = output
        self.streams, self._sources = output.open_pipes()
        """To be closed here once the rank has them."""
        self.rename(rank)

    def rename(self, rank: int) -> None:
        """Let lines from here on be those of another rank."""
        if self._output.prefixes:
            for source in self._sources:
                source.writer.prefix = b"[rank%d]: " % rank

    def finish(self) -> None:
        """Pass on what the rank printed before its end, which must have been waited for.

        Its children may still print; the launcher waits neither for them nor for a log that is not
        read.
        """
        self._output.drain(self._sources)

    def ends(self) -> list[bytes]:
        """The last that it printed to each of its streams, stderr the last."""
        return [bytes(source.end) for source in self._sources]


class Output:
    """Between `with` and its end, this process's stdout and stderr and those of its ranks become
    one log each.

    Signals that this process waits for must be blocked when it begins.
    """

    def __init__(self, *, prefixes: bool) -> None:
        """`prefixes`: whether lines of ranks begin with their rank."""
        self.prefixes = prefixes
        self._sources: dict[int, _Source] = {}
        """By file descriptor; the thread's own, as all that follows from them."""
        self._requests: deque[Callable[[], None]] = deque()
        self._poll, self._poll_wake = select.poll(), select.poll()
        self._thread = threading.Thread(target=self._forward, name="output", daemon=True)
        self._ends = False

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read whether lines are to have a prefix.

        Raises:
            ConfigurationError: the variable is malformed.
        """
        prefix = env.get(PREFIX_VARIABLE, "")
        if prefix not in ("", "rank"):
            raise ConfigurationError(f"{PREFIX_VARIABLE} is {prefix!r}: set it to rank")
        return cls(prefixes=prefix == "rank")

    def __enter__(self) -> Self:
        """Raises OSError: there are too many open files, or threads."""
        with contextlib.ExitStack() as opened:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            opened.callback(os.close, self._wake)
            self._logs = {1: self._log_at(1, opened)}
            one_file = os.path.samestat(os.fstat(1), os.fstat(2))
            self._logs[2] = self._logs[1] if one_file else self._log_at(2, opened)
            for poll in (self._poll, self._poll_wake):
                poll.register(self._wake, select.POLLIN)
            own, _ = self.open_pipes()
            try:
                self._thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, str(error)) from error
            self._opened = opened.pop_all()
        # Lines of the launcher, and of the process that forks ranks, take the same way.
        for fd, pipe in zip(self._logs, own, strict=True):
            os.dup2(pipe, fd)
        own.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        flush_streams()
        for fd, log in self._logs.items():
            os.dup2(log.fd, fd)
        self._ask(self._end)
        self._thread.join(_ANSWER_SECONDS)
        if not self._thread.is_alive():
            self._opened.close()

    def _log_at(self, fd: int, opened: contextlib.ExitStack) -> _Log:
        copy = os.dup(fd)
        opened.callback(os.close, copy)
        return _Log(copy)

    def open_pipes(self) -> tuple[Streams, list[_Source]]:
        """Streams for a process, and where they are read.

        Raises:
            OSError: there are too many open files.
        """
        ends: dict[_Log, int] = {}
        sources: list[_Source] = []
        for fd, log in self._logs.items():
            if log in ends:
                continue  # one pipe keeps the order between the two
            if os.isatty(log.fd) and not self.prefixes:
                ends[log] = os.dup(fd)
                continue
            end, ends[log] = os.pipe()
            sources.append(_Source(end, Writer(), log))
        self._ask(lambda: self._watch(sources))
        return Streams(ends[self._logs[1]], ends[self._logs[2]]), sources

    def drain(self, sources: list[_Source]) -> None:
        """Pass on what is in pipes now, and end its last line; but do not wait for very long."""
        done = threading.Event()

        def act() -> None:
            for source in sources:
                self._drain(source)
            done.set()

        self._ask(act)
        done.wait(_ANSWER_SECONDS)

    def _ask(self, request: Callable[[], None]) -> None:
        """Have the thread do something, so that it alone knows about pipes and lines."""
        self._requests.append(request)
        os.eventfd_write(self._wake, 1)

    def _watch(self, sources: list[_Source]) -> None:
        for source in sources:
            self._sources[source.fd] = source
            self._poll.register(source.fd, select.POLLIN)

    def _end(self) -> None:
        for source in [*self._sources.values()]:
            self._drain(source)
        self._ends = True

    def _forward(self) -> None:
        try:
            while not self._ends:
                seconds = min(log.lines.next_due for log in self._logs.values()) - time.monotonic()
                ready = {fd for fd, _ in self._poll.poll(_milliseconds(seconds))}
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                while self._requests:
                    self._requests.popleft()()
                read = sum(self._read(self._sources[fd]) for fd in ready & self._sources.keys())
                for log in {*self._logs.values()}:
                    log.write()
                if 0 < read < _CHUNK_BYTES // 2:
                    self._poll_wake.poll(_milliseconds(_GATHER_SECONDS))
        finally:
            for fd in self._sources:
                os.close(fd)

    def _read(self, source: _Source) -> int:
        """Read once; returns how many bytes."""
        text = os.read(source.fd, _CHUNK_BYTES)
        if text:
            source.log.lines.feed(source.writer, text, now=time.monotonic())
            source.end += text
            del source.end[:-KEPT_BYTES]
        else:
            source.log.lines.end(source.writer)
            self._poll.unregister(source.fd)
            del self._sources[source.fd]
            os.close(source.fd)
        return len(text)

    def _drain(self, source: _Source) -> None:
        """Whoever wants the last words of a rank that has failed finds them here."""
        if self._sources.get(source.fd) is not source:
            return  # read to its end already
        waiting = array.array("i", [0])
        fcntl.ioctl(source.fd, termios.FIONREAD, waiting)
        # No more than that: a child that goes on printing must hold up nobody.
        left = waiting[0]
        while left > 0:
            left -= self._read(source)
            source.log.write()
        source.log.lines.end(source.writer)
        source.log.write()


def _milliseconds(seconds: float) -> float | None:
    return None if seconds == float("inf") else max(seconds, 0.0) * 1000
