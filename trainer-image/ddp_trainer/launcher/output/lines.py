"""Merges the output of several processes into one log, in whole lines.

A line often arrives in pieces: `print("loss", loss)` makes four writes if Python does not buffer.
Without merging, pieces of several ranks would mix inside a line.

Pure: `rank_output` reads the output and writes the log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

LONGEST_BYTES: Final = 64 * 1024
"""A process's text is passed on when it is this long, even if its line is incomplete."""
_PAUSE_SECONDS: Final = 0.05
"""Lines printed with shorter pauses, such as those of a traceback, stay together."""
_HOLD_SECONDS: Final = 0.2
"""How long lines wait for such a pause."""
_HOLD_UNFINISHED_SECONDS: Final = 0.5
"""How long the start of a line waits for its end while no other process prints."""
_HOLD_AMONG_OTHERS_SECONDS: Final = 2.0
"""The same while others print: a process may lose the CPU in the middle of a line."""


@dataclass(eq=False)
class Writer:
    """Output of a process that is not yet in the log."""

    prefix: bytes = b""
    """Put before each line that does not already begin with it."""
    held: bytearray = field(default_factory=bytearray)
    whole: int = 0
    """Bytes of `held` up to the end of its last line; a carriage return also ends a line."""
    since: float = 0.0
    """When the oldest byte of `held` was printed."""
    fed: float = 0.0
    """When the newest byte was printed."""
    ended: bool = False
    """True: the process has ended, so its last line is complete."""
    cut: bool = False
    """True: the log ended the process's line before the process did."""


class LineMerger:
    """Decides which text is next in a log. `now` is in seconds of any monotonic clock.

    Lines are passed on whole, with three exceptions: lines that take too long, that are too long,
    or that end in a carriage return, since a progress bar is useful only at once. If the log is
    inside such a line when another process's line is due, it gets a newline first. Holding the
    other line back would delay it for as long as the bar is drawn, or the process hangs.
    """

    def __init__(self) -> None:
        self._writers: list[Writer] = []
        self._unfinished: Writer | None = None
        """The process with an unfinished line at the end of the log."""

    def feed(self, writer: Writer, text: bytes, *, now: float) -> None:
        """Add output of a process. Output after its end comes from its child processes."""
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
        """Make all output of a process due, and end its last line."""
        if writer in self._writers:
            writer.ended = True

    def take(self, *, now: float) -> bytes:
        """Return the text to write to the log now."""
        parts: list[bytes] = []
        # The unfinished line comes first: it may be completed before another one cuts it off.
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
        """Time of the next text to take, if nothing else is printed; infinity: none."""
        dues = (self._due(writer) for writer in self._writers)
        return min((due for due, size in dues if size), default=math.inf)

    def _due(self, writer: Writer) -> tuple[float, int]:
        """Return when to pass on text of a writer, and how many bytes."""
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
            text = text.removeprefix(b"\n")  # the log has one already
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
    """Put the prefix before each line, except before the rest of a line that has it."""
    if not prefix:
        return text
    lines = text.split(b"\n")
    for at, line in enumerate(lines):
        rest_of_another = at == 0 and continues
        after_the_last = at == len(lines) - 1 and not line
        if not (rest_of_another or after_the_last or line.startswith(prefix)):
            lines[at] = prefix + line
    return b"\n".join(lines)
