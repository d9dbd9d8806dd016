"""Delays between checks of something that may take a moment or an hour; they grow with the wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Delays before the next check."""

    shortest_seconds: float
    longest_seconds: float
    per_doubling: int
    """The end of a wait is noticed at most 1/`per_doubling` of its length late."""

    def after(self, waited_seconds: float) -> float:
        """Return the next delay in seconds, after waiting for `waited_seconds`."""
        pause = max(waited_seconds / self.per_doubling, self.shortest_seconds)
        return min(pause, self.longest_seconds)
