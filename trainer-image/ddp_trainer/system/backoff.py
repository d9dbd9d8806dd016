"""Pauses between looks at what may take a moment or an hour: the longer it took, the longer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long to wait before another look."""

    shortest_seconds: float
    longest_seconds: float
    per_doubling: int
    """A wait is found to be over at most 1/`per_doubling` of its length late."""

    def after(self, waited_seconds: float) -> float:
        """In seconds, after so much of the wait."""
        pause = max(waited_seconds / self.per_doubling, self.shortest_seconds)
        return min(pause, self.longest_seconds)
