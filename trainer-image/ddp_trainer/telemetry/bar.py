"""A progress bar on the last line of a terminal; log lines go above it."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from typing import TextIO

_ERASE = "\r\x1b[2K"
"""Moves to the beginning of the line and clears it (ECMA-48)."""
_INTERVAL_SECONDS = 0.2
_LONGEST = 30


class ProgressBar:
    """A progress bar that replaces the terminal as the stream of a log handler."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._line = ""
        self._drawn_at = 0.0

    @classmethod
    def on_stdout(cls) -> ProgressBar | None:
        """Return a bar if stdout is a terminal, and print this process's log lines above it."""
        if not sys.stdout.isatty():
            return None
        bar = cls(sys.stdout)
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
                handler.setStream(bar)
        return bar

    def show(self, done: int, total: int | None, text: str) -> None:
        """Draw the bar, unless it was drawn a moment ago. `total` None: unknown."""
        now = time.monotonic()
        if now - self._drawn_at >= _INTERVAL_SECONDS or done == total:
            self._drawn_at = now
            columns = shutil.get_terminal_size().columns
            self._line = draw(done, total, text, columns=columns)
            self.write("")

    def write(self, text: str) -> None:
        """Print lines above the bar."""
        # The cursor returns to the start of the bar, so other processes' lines overwrite it.
        self._terminal.write(f"{_ERASE}{text}{self._line}\r")
        self._terminal.flush()

    def flush(self) -> None:
        """Do nothing: every write is flushed."""

    def end(self) -> None:
        """Remove the bar."""
        self._line = ""
        self.write("")


def draw(done: int, total: int | None, text: str, *, columns: int) -> str:
    """Return `[#####-----] text` within the terminal's width; without a total only the text."""
    if total is None:
        return text[: columns - 1]
    length = max(0, min(_LONGEST, columns - len(text) - 4))
    filled = length * done // max(total, 1)
    return f"[{'#' * filled}{'-' * (length - filled)}] {text}"[: columns - 1]
