"""Looks at ranks a few times after their start."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence


class EarlyCheck:
    """Looks a few times for something to remark on, until it finds it."""

    def __init__(self, looks_at: Sequence[float]) -> None:
        """`looks_at`: seconds after the start of the ranks, ascending."""
        self.remark = ""
        """Describes what was found; empty: nothing."""
        self._looks_at = looks_at
        self._looks: list[float] = []

    def begin(self) -> None:
        """Plan the checks; the ranks have just started."""
        now = time.monotonic()
        self._looks = [now + seconds for seconds in self._looks_at]

    @property
    def due_in_seconds(self) -> float | None:
        """Seconds until the next check; None: no more checks."""
        return max(self._looks[0] - time.monotonic(), 0.0) if self._looks else None

    def look(self, ranks: Mapping[int, int], variables: Mapping[int, Mapping[str, str]]) -> bool:
        """Check if it is time; return True if something was found now.

        `ranks`: process IDs by rank. `variables`: the variables of each rank.
        """
        if not self._looks or time.monotonic() < self._looks[0]:
            return False
        del self._looks[0]
        found = self.find(ranks, variables)
        if found:
            self._looks.clear()
            self.remark = found
        return bool(found)

    def find(self, ranks: Mapping[int, int], variables: Mapping[int, Mapping[str, str]]) -> str:
        """Return what to remark on; empty: nothing. See `look`."""
        raise NotImplementedError
