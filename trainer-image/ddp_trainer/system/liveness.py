"""Tells which of several counters stand still. Pure: pulses of processes and beats of ranks.

A pulse is a thread of the process, and Python lets no thread run while another one is in a long
call that keeps Python's lock, or while the machine swaps. Such a process is busy and not frozen:
what the kernel tells of it is another sign of life, which counts for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddp_trainer.system.activity import Activity

_BUSY_CORES = 0.05
"""Of a core's time. A busy process gets more even of a crowded node; of one that has locked itself
in, each thread that waits for Python's lock looks for it 200 times a second, for 0.2 % of a core.
"""
_WINDOWS_PER_TIMEOUT = 8
"""Twice as many as a launcher looks, which also looks whenever something else happens."""
_LEAST_WINDOW_SECONDS = 0.25
"""The kernel counts a process's time in ticks of 10 ms: a single one must not pass for work."""


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


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """What a look at processes has shown: their keys, in order."""

    frozen: list[int]
    """Without a sign of life for longer than the timeout, or without a pulse for much longer."""
    busy: list[int]
    """Without a pulse for longer than the timeout, and seen at work even after that."""


class FrozenWatch:
    """Tells processes that stand still from those that are too busy for a pulse."""

    def __init__(self, *, timeout_seconds: float, longest_seconds: float, now: float) -> None:
        """`timeout_seconds`: how long a process may give no sign of life.

        `longest_seconds`: how long it may be too busy for a pulse.
        """
        self._signs_of_life = Silence(timeout_seconds=timeout_seconds, now=now)
        self._pulses = Silence(timeout_seconds=timeout_seconds, now=now)
        self._pulses_at_all = Silence(timeout_seconds=longest_seconds, now=now)
        self._window_seconds = max(timeout_seconds / _WINDOWS_PER_TIMEOUT, _LEAST_WINDOW_SECONDS)
        self._known_pulses: dict[int, int] = {}
        self._activities: dict[int, tuple[Activity | None, float]] = {}
        """What each process without a pulse had done, and when."""
        self._signs: dict[int, int] = {}
        self._busy: set[int] = set()

    def look(
        self,
        pulses: Mapping[int, int],
        activity: Callable[[int], Activity | None],
        *,
        now: float,
    ) -> Liveness:
        """Look at the pulses, and at the `activity` of those whose pulse has not moved since."""
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
        # Who worked on for a moment after a last pulse, and then stood still, was never busy.
        self._busy = ({*quiet} - {*lifeless}) & (self._busy | alive)
        return Liveness(frozen=sorted({*lifeless, *too_quiet}), busy=sorted(self._busy))

    def _works(self, key: int, activity: Callable[[int], Activity | None], *, now: float) -> bool:
        """Whether a process was at work since it was last asked, if that was long enough ago."""
        before, then = self._activities.get(key, (None, -math.inf))
        if now - then < self._window_seconds:
            return False
        after = activity(key)
        self._activities[key] = after, now
        return _is_busy(before, after, seconds=now - then)


def _is_busy(before: Activity | None, after: Activity | None, *, seconds: float) -> bool:
    """Whether a process was at work between two looks."""
    if after is None:
        return False
    if after.waits_for_disk:
        return True
    return before is not None and after.cpu_seconds - before.cpu_seconds >= _BUSY_CORES * seconds
