"""Tells which of several counters stand still. Pure: pulses of processes and beats of ranks."""

from __future__ import annotations

from collections.abc import Mapping


class Silence:
    """How long each of several counters has stood still, by one clock.

    Counters stand still for the watcher too when it was frozen itself, which is nobody's fault: a
    look that comes late forgives everyone.
    """

    def __init__(self, *, timeout_seconds: float, now: float) -> None:
        """`timeout_seconds`: how long a counter may stand still."""
        self._timeout_seconds = timeout_seconds
        self._looked_at = now
        self._seen: dict[int, tuple[int, float]] = {}

    def look(self, counters: Mapping[int, int], *, now: float) -> list[int]:
        """The keys whose counters have not moved for longer than the timeout, in order."""
        late = now - self._looked_at > self._timeout_seconds / 2
        self._looked_at = now
        for key, count in counters.items():
            known = self._seen.get(key)
            if late or known is None or known[0] != count:
                self._seen[key] = (count, now)
        return sorted(key for key in counters if now - self._seen[key][1] > self._timeout_seconds)
