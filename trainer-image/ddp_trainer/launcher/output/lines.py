"""Merges what several processes print into one log, a whole line at a time.

A line often comes in pieces: `print("loss", loss)` is four writes where Python does not buffer.
Passed on as they come, the pieces of several ranks mix inside a line.

Pure: `output` reads what processes print, and writes the log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

LONGEST_BYTES: Final = 64 * 1024
"""A process's text is passed on when there is so much of it, even if its line is not complete."""
_PAUSE_SECONDS: Final = 0.05
"""Lines that a process prints with shorter pauses, such as a traceback's, stay together."""
_HOLD_SECONDS: Final = 0.2
"""How long lines wait for such a pause."""
_HOLD_UNFINISHED_SECONDS: Final = 0.5
"""How long the start of a line waits for its end while nobody else prints."""
_HOLD_AMONG_OTHERS_SECONDS: Final = 2.0
"""The same while others print: a process may get no CPU in the middle of a line."""


@dataclass(eq=False)
class Writer:
    """What a process has printed and the log does not have yet."""

    prefix: bytes = b""
    """Goes before each line that does not begin with it already."""
    held: bytearray = field(default_factory=bytearray)
    whole: int = 0
    """Bytes of `held` up to the end of its last line; a carriage return ends one, too."""
    since: float = 0.0
    """When the oldest byte of `held` was printed."""
    fed: float = 0.0
    """When the newest byte was printed."""
    ended: bool = False
    """Whether the process has ended: its last line will get no longer."""
    cut: bool = False
    """Whether the log ended the process's line before the process did."""


class LineMerger:
    """Decides which text is next in a log. `now` is in seconds, of any clock that only rises.

    Lines are passed on whole, except those that take too long, are too long, or end in a carriage
    return: a progress bar is of use only at once. If the log is in the middle of such a line when
    another process's line is due, it gets a newline first. To hold the others' lines instead would
    hold them for as long as a bar is drawn, or a process hangs.
    """

    def __init__(self) -> None:
        self._writers: list[Writer] = []
        self._unfinished: Writer | None = None
        """Whose line the log is in the middle of."""

    def feed(self, writer: Writer, text: bytes, *, now: float) -> None:
        """Add what a process has printed; one that had ended is one that has children."""
        if writer not in self._writers:
            self._writers.append(writer)
        if not writer.held:
            writer.since = now
        line_end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if line_end:
            writer.whole = len(writer.held) + line_end
        writer.held += text
        writer.fed = now
        writer.ended = False

    def end(self, writer: Writer) -> None:
        """Let all that a process has printed be due, and end its last line."""
        if writer in self._writers:
            writer.ended = True

    def take(self, *, now: float) -> bytes:
        """Return what is to be written to the log now."""
        parts: list[bytes] = []
        # A line that the log is in the middle of may be completed before another one cuts it off.
        for writer in sorted(self._writers, key=lambda w: (w is not self._unfinished, w.since)):
            due, size = self._due(writer)
            if size and due <= now:
                parts.append(self._pass_on(writer, size))
            if writer.ended and not writer.held:
                if writer is self._unfinished:
                    parts.append(b"\n")
                    self._unfinished = None
                self._writers.remove(writer)
        return b"".join(parts)

    @property
    def next_due(self) -> float:
        """When there is something to take, if nothing else is printed; infinity: never."""
        dues = (self._due(writer) for writer in self._writers)
        return min((due for due, size in dues if size), default=math.inf)

    def _due(self, writer: Writer) -> tuple[float, int]:
        """When how many bytes of a writer's text are passed on."""
        size = len(writer.held)
        if writer.ended:
            return -math.inf, size
        if writer is self._unfinished or size >= LONGEST_BYTES:
            return -math.inf, writer.whole or size
        if writer.whole:
            return min(writer.fed + _PAUSE_SECONDS, writer.since + _HOLD_SECONDS), writer.whole
        others = max((one.fed for one in self._writers if one is not writer), default=-math.inf)
        quiet = max(others, writer.since) + _HOLD_UNFINISHED_SECONDS
        return min(quiet, writer.since + _HOLD_AMONG_OTHERS_SECONDS), size

    def _pass_on(self, writer: Writer, size: int) -> bytes:
        text = bytes(writer.held[:size])
        del writer.held[:size]
        writer.whole = max(writer.whole - size, 0)
        writer.since = writer.fed
        if writer.cut:
            writer.cut = False
            text = text.removeprefix(b"\n")  # there is one already
            if not text:
                return b""
        before = b""
        continues = writer is self._unfinished
        if self._unfinished is not None and not continues:
            self._unfinished.cut = True
            before = b"\n"
        self._unfinished = None if text.endswith(b"\n") else writer
        return before + _prefixed(text, writer.prefix, continues=continues)


def _prefixed(text: bytes, prefix: bytes, *, continues: bool) -> bytes:
    """Put the prefix before each line; the first of them may be the rest of one that has it."""
    if not prefix:
        return text
    lines = text.split(b"\n")
    for at, line in enumerate(lines):
        rest_of_another = at == 0 and continues
        after_the_last = at == len(lines) - 1 and not line
        if not (rest_of_another or after_the_last or line.startswith(prefix)):
            lines[at] = prefix + line
    return b"\n".join(lines)
