"""A log of what may repeat: a message is logged at once if it is new, then once a minute."""

import logging
import time
from collections.abc import Callable
from typing import Final

SECONDS: Final = 60.0
"""How often the same message is logged."""


class RepeatedLog:
    """Logs the messages of one source."""

    def __init__(
        self, logger: logging.Logger, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._message = ""
        self._due = 0.0

    def add(self, level: int, message: str) -> None:
        """Log a message if it is due."""
        now = self._clock()
        if message != self._message or now >= self._due:
            self._message, self._due = message, now + SECONDS
            self._logger.log(level, "%s", message)
