"""Who holds the others up. Pure."""

from __future__ import annotations

from dataclasses import dataclass

THRESHOLD = 1.5
"""A straggler needs this many times the mean of the other ranks' own time."""
MINIMUM_SECONDS = 0.001
"""Per step, beyond that mean: what is less is noise, and not worth a word."""
IN_A_ROW = 5
"""So many comparisons have to name the same rank: a hiccup makes no straggler."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a step takes ranks by themselves, before they wait for others."""

    slowest_rank: int
    slowest_seconds: float
    others_seconds: float
    """The mean of the others; 0 where there are none."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The slowest rank, by its own time a step: before it waits for others."""

    rank: int
    seconds: float
    others_seconds: float
    """The mean of the others."""

    @property
    def ratio(self) -> float:
        """How many times slower than the others."""
        return self.seconds / self.others_seconds

    def __str__(self) -> str:
        return (
            f"rank {self.rank} holds the others up: it needs {self.seconds:.3g} s a step by itself,"
            f" {self.ratio:.1f} times the mean of the others"
        )


class StragglerWatch:
    """Compares ranks now and then."""

    def __init__(self) -> None:
        self._suspect: int | None = None
        self._times = 0

    def compare(self, pace: Pace) -> Straggler | None:
        """The straggler, if there is one."""
        slowest = _straggler(pace)
        suspect = slowest.rank if slowest is not None else None
        self._times = self._times + 1 if suspect == self._suspect else 1
        self._suspect = suspect
        return slowest if self._times >= IN_A_ROW else None


def _straggler(pace: Pace) -> Straggler | None:
    seconds, others = pace.slowest_seconds, pace.others_seconds
    if others <= 0 or seconds - others < MINIMUM_SECONDS or seconds < THRESHOLD * others:
        return None
    return Straggler(rank=pace.slowest_rank, seconds=seconds, others_seconds=others)
