"""Detects counters that no longer change: pulses of processes and heartbeats of ranks. Pure.

A thread of the process sends the pulse. It cannot run while another thread holds Python's lock in a
long call, or while the machine swaps. Such a process is busy, not frozen. Its CPU time, read from
the kernel, is another sign of life, which counts for a limited time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddp_trainer.system.activity import Activity

_BUSY_CORES = 0.05
"""Least CPU use of a busy process, in cores. It gets more than that even on a crowded node. In a
deadlocked process, each thread that waits for Python's lock polls it 200 times a second, which
takes 0.2 % of a core."""
_WINDOWS_PER_TIMEOUT = 8
"""Twice as many as the launcher's regular checks; it also checks on other events."""
_LEAST_WINDOW_SECONDS = 0.25
"""The kernel counts CPU time in ticks of 10 ms; a single tick must not count as work."""


class Silence:
    """Measures how long each of several counters has not changed.

    If the watcher itself was frozen, it saw no changes either. So a late check resets all times.
    """

    def __init__(self, *, timeout_seconds: float, now: float) -> None:
        """`timeout_seconds`: how long a counter may stay unchanged."""
        self._timeout_seconds = timeout_seconds
        self._looked_at = now
        self._seen: dict[int, tuple[int, float]] = {}

    def look(self, counters: Mapping[int, int], *, now: float) -> list[int]:
        """Return the keys of counters that have not changed for the timeout, in order."""
        late = now - self._looked_at > self._timeout_seconds / 2
        self._looked_at = now
        for key, count in counters.items():
            known = self._seen.get(key)
            if late or known is None or known[0] != count:
                self._seen[key] = (count, now)
        return sorted(key for key in counters if now - self._seen[key][1] > self._timeout_seconds)


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """The result of a check: sorted keys of processes."""

    frozen: list[int]
    """Processes without a sign of life for the timeout, or without a pulse for much longer."""
    busy: list[int]
    """Processes without a pulse for the timeout that still work."""


class FrozenWatch:
    """Tells frozen processes from those that are too busy for a pulse."""

    def __init__(self, *, timeout_seconds: float, longest_seconds: float, now: float) -> None:
        """`timeout_seconds`: how long a process may show no sign of life.

        `longest_seconds`: how long it may be too busy for a pulse.
        """
        self._signs_of_life = Silence(timeout_seconds=timeout_seconds, now=now)
        self._pulses = Silence(timeout_seconds=timeout_seconds, now=now)
        self._pulses_at_all = Silence(timeout_seconds=longest_seconds, now=now)
        self._window_seconds = max(timeout_seconds / _WINDOWS_PER_TIMEOUT, _LEAST_WINDOW_SECONDS)
        self._known_pulses: dict[int, int] = {}
        self._activities: dict[int, tuple[Activity | None, float]] = {}
        """Last known activity of each process without a pulse, and its time."""
        self._signs: dict[int, int] = {}
        self._busy: set[int] = set()

    def look(
        self,
        pulses: Mapping[int, int],
        activity: Callable[[int], Activity | None],
        *,
        now: float,
    ) -> Liveness:
        """Check the pulses, and the `activity` of processes whose pulse has not changed."""
        alive = set()
        for key, pulse in pulses.items():
            if pulse != self._known_pulses.get(key):
                self._known_pulses[key] = pulse
                self._activities.pop(key, None)
                alive.add(key)
            elif self._works(key, activity, now=now):
                alive.add(key)
            self._signs[key] = self._signs.get(key, 0) + (key in alive)
        signs = {key: self._signs[key] for key in pulses}
        lifeless = self._signs_of_life.look(signs, now=now)
        quiet = self._pulses.look(pulses, now=now)
        too_quiet = self._pulses_at_all.look(pulses, now=now)
        # A process that worked briefly after its last pulse and then stopped was never busy.
        self._busy = ({*quiet} - {*lifeless}) & (self._busy | alive)
        return Liveness(frozen=sorted({*lifeless, *too_quiet}), busy=sorted(self._busy))

    def _works(self, key: int, activity: Callable[[int], Activity | None], *, now: float) -> bool:
        """Return True if a process worked since the last check, if that was long enough ago."""
        before, then = self._activities.get(key, (None, -math.inf))
        if now - then < self._window_seconds:
            return False
        after = activity(key)
        self._activities[key] = after, now
        return _is_busy(before, after, seconds=now - then)


def _is_busy(before: Activity | None, after: Activity | None, *, seconds: float) -> bool:
    """Return True if a process worked between two checks."""
    if after is None:
        return False
    if after.waits_for_disk:
        return True
    return before is not None and after.cpu_seconds - before.cpu_seconds >= _BUSY_CORES * seconds
