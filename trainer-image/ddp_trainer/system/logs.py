"""Log lines for people, the same from launcher and ranks, to the last one."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def log_to_stdout(speaker: str) -> None:
    """Log lines as `12:00:01 [rank 0] step 10/276 …`."""
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO,
        format=f"%(asctime)s [{speaker}] %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )


class DistinctErrors:
    """Trouble that comes again and again: a line in the log whenever it is another one."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        """`what` is the trouble, before a colon and the error."""
        self._logger = logger
        self._what = what
        self._last = ""

    def attempt(self, action: Callable[[], None]) -> bool:
        """Do something whose failure ends nothing; returns whether it could be done."""
        try:
            action()
        except OSError as error:
            self.log(error)
            return False
        return True

    def log(self, error: Exception) -> None:
        """Log it, unless it is the last one again."""
        if str(error) != self._last:
            self._last = str(error)
            self._logger.warning("%s: %s", self._what, error)


def end_process(code: int) -> NoReturn:
    """End this process with a code that nothing can change any more.

    A log that cannot be written (disk full, reader gone) would make it another one. So would
    threads of a broken group, which can hang or abort the interpreter's shutdown.
    """
    flush_streams()
    os._exit(code)


def flush_streams() -> None:
    """Write what was printed so far, as far as it can be written."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError):
            stream.flush()
