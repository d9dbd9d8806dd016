"""Copies the output of ranks to the pod's log, in whole lines (`lines`).

Each rank has its own pipes, which one thread of the launcher reads. The thread holds little: if
nobody reads the log, the pipes fill, and ranks wait in `print` as without the launcher. The output
of a rank is still in its pipe after it dies in any way. It is lost only if the launcher itself is
killed, and then the pod ends, too.

A pod with one rank also uses pipes: its lines could mix with those of the launcher, and one way is
easier to test than two.

A terminal is passed to ranks directly, since progress bars, colours and debuggers need one.
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
"""If set to `rank`, each line begins with its rank, as torch's errors do: `[rank3]: `."""
_CHUNK_BYTES: Final = 64 * 1024
"""Capacity of a pipe."""
_GATHER_SECONDS: Final = 0.02
"""How long to let text gather in the pipes when little is printed: polling costs more than reading
so little."""
_ANSWER_SECONDS: Final = 5.0
"""How long the end of a rank may wait for a log that nobody reads."""


class Streams(NamedTuple):
    """File descriptors for a process's stdout and stderr."""

    stdout: int
    stderr: int

    def close(self) -> None:
        """Close them here; the process has its own copies."""
        for fd in {*self}:
            os.close(fd)


OWN_STREAMS: Final = Streams(1, 2)
"""stdout and stderr of this process."""


@dataclass(eq=False)
class _Log:
    """The launcher's own stdout or stderr, or both if they are the same file."""

    fd: int
    lines: LineMerger = field(default_factory=LineMerger)

    def write(self) -> None:
        """Write the text that is due; wait while nobody reads the log."""
        text = memoryview(self.lines.take(now=time.monotonic()))
        while text:
            try:
                text = text[os.write(self.fd, text) :]
            except BlockingIOError:
                select.select([], [self.fd], [])
            except OSError:  # the disk is full or the reader is gone: training continues anyway
                return


@dataclass(eq=False)
class _Source:
    """A pipe with the output of a process."""

    fd: int
    """The end to read from."""
    writer: Writer
    log: _Log
    end: bytearray = field(default_factory=bytearray)
    """The last bytes that were read."""


class RankOutput:
    """The output of one rank."""

    def __init__(self, output: Output, rank: int) -> None:
        """Raises OSError: there are too many open files."""
        self._output = output
        self.streams, self._sources = output.open_pipes()
        """The caller closes them once the rank has started."""
        self.rename(rank)

    def rename(self, rank: int) -> None:
        """Use another rank in the prefix of later lines."""
        if self._output.prefixes:
            for source in self._sources:
                source.writer.prefix = b"[rank%d]: " % rank

    def finish(self) -> None:
        """Pass on the rest of the rank's output, after the rank has been reaped.

        Its child processes may still print. The launcher waits neither for them nor for a log that
        nobody reads.
        """
        self._output.drain(self._sources)

    def ends(self) -> list[bytes]:
        """Return the last output on each stream; stderr is the last one."""
        return [bytes(source.end) for source in self._sources]


class Output:
    """Context manager that merges the output of this process and its ranks.

    Inside `with`, all stdout goes to one log, and all stderr to another. The signals that this
    process waits for must be blocked on entry.
    """

    def __init__(self, *, prefixes: bool) -> None:
        """`prefixes`: true if lines of ranks begin with their rank."""
        self.prefixes = prefixes
        self._sources: dict[int, _Source] = {}
        """By file descriptor; used only by the thread."""
        self._requests: deque[Callable[[], None]] = deque()
        self._poll, self._poll_wake = select.poll(), select.poll()
        self._thread = threading.Thread(
            target=self._forward, name="launcher: forwards output", daemon=True
        )
        self._ends = False

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read DDP_LOG_PREFIX.

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
        # Output of the launcher, and of the process that forks ranks, uses the same pipes.
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
        """Return streams for a process, and the pipes to read them from.

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
        """Pass on the current content of pipes and end its last line, within a few seconds."""
        done = threading.Event()

        def act() -> None:
            for source in sources:
                self._drain(source)
            done.set()

        self._ask(act)
        done.wait(_ANSWER_SECONDS)

    def _ask(self, request: Callable[[], None]) -> None:
        """Run a function in the thread, which alone uses pipes and lines."""
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
        """Read and write all current content of a pipe, the last output of a failed rank."""
        if self._sources.get(source.fd) is not source:
            return  # already read to its end
        waiting = array.array("i", [0])
        fcntl.ioctl(source.fd, termios.FIONREAD, waiting)
        # Read no more than that: a child process that continues to print must not delay us.
        left = waiting[0]
        while left > 0:
            left -= self._read(source)
            source.log.write()
        source.log.lines.end(source.writer)
        source.log.write()


def _milliseconds(seconds: float) -> float | None:
    return None if seconds == float("inf") else max(seconds, 0.0) * 1000
