"""Log lines of the launcher and the ranks, in one format, written out to the last one."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def log_to_stdout(speaker: str) -> None:
    """Log lines as `12:00:01 [rank 0] step 10/276 …`."""
    keep_lines_whole()
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO,
        format=f"%(asctime)s [{speaker}] %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )


def keep_lines_whole() -> None:
    """Write each line of stdout at once, so that no line of another thread gets into it.

    With PYTHONUNBUFFERED, `print` writes a text and the end of its line one after the other. A
    terminal stays as it is: a prompt has no end of a line.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


class DistinctErrors:
    """Logs errors of a repeated action, but not the same error twice in a row."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        """`what`: the first part of the log line, before a colon and the error."""
        self._logger = logger
        self._what = what
        self._last = ""

    def attempt(self, action: Callable[[], None]) -> bool:
        """Run the action and log its OSError; return True if it succeeded."""
        try:
            action()
        except OSError as error:
            self.log(error)
            return False
        return True

    def log(self, error: Exception) -> None:
        """Log an error, unless it is the same as the last one."""
        if str(error) != self._last:
            self._last = str(error)
            self._logger.warning("%s: %s", self._what, error)


def end_process(code: int) -> NoReturn:
    """End this process with exactly this exit code.

    On a normal exit, a log that cannot be written (disk full, reader gone) would change the code.
    So would threads of a broken group, which can hang or abort the interpreter's shutdown.
    """
    flush_streams()
    os._exit(code)


def flush_streams() -> None:
    """Flush stdout and stderr, and ignore errors."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError):
            stream.flush()
