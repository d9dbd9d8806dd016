"""Logs refused requests without letting a flood of them fill the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

_PERIOD_SECONDS = 60.0
_MOST_KINDS = 64
"""Pairs of client and kind that a period distinguishes. The rest counts as one more client."""
_MOST_CHARACTERS = 120
_logger = logging.getLogger(__name__)


class RefusalLog:
    """Logs the first refusal of each client and kind in a minute, then the 10th, 100th and so on.

    Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic, in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, int]] = Counter()
        self._ends_at = 0.0

    def add(self, client: str, kind: int, request: str, reason: str) -> None:
        """Count a refusal, and log it if it is due.

        `kind`: HTTP status, or 0 for a connection that was closed without an answer.
        `request`: method and path.
        """
        with self._lock:
            now = self._clock()
            if now >= self._ends_at:
                self._counts.clear()
                self._ends_at = now + _PERIOD_SECONDS
            if (client, kind) not in self._counts and len(self._counts) >= _MOST_KINDS:
                client = "other clients"
            self._counts[client, kind] += 1
            count = self._counts[client, kind]
        if str(count).strip("0") == "1":  # a power of ten
            times = f" ({count} times within a minute)" if count > 1 else ""
            _logger.warning(
                "refused %s from %s: %s%s", _printable(request), client, _printable(reason), times
            )


def _printable(text: str) -> str:
    return ascii(text.strip()[:_MOST_CHARACTERS])[1:-1]
