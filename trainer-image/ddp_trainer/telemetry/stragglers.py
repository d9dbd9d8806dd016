"""Finds a rank that is slower than the others. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_protocol.progress import PaceStatus

THRESHOLD = 1.5
"""A straggler's own time is at least this many times the mean of the other ranks."""
MINIMUM_SECONDS = 0.001
"""Least excess over that mean per step; less is noise."""
IN_A_ROW = 5
"""Number of consecutive comparisons that must find the same rank; a short delay does not count."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The ranks' own times per step, without waiting for others."""

    slowest_rank: int
    slowest_seconds: float
    others_seconds: float
    """Mean of the other ranks; 0 if there are none."""

    def status(self, step: int) -> PaceStatus | None:
        """Return what the status shows after a step; None: there is no other rank."""
        if self.others_seconds <= 0:
            return None
        return PaceStatus(
            step=step,
            rank=self.slowest_rank,
            seconds=round(self.slowest_seconds, 6),
            others_seconds=round(self.others_seconds, 6),
        )


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The slowest rank, by its own time per step, without waiting for others."""

    rank: int
    seconds: float
    others_seconds: float
    """Mean of the other ranks."""

    @property
    def ratio(self) -> float:
        """Its own time divided by the mean of the other ranks."""
        return self.seconds / self.others_seconds

    def __str__(self) -> str:
        return (
            f"rank {self.rank} holds the others up: its own time per step is {self.seconds:.3g} s, "
            f"{self.ratio:.1f} times the mean of the others"
        )


class StragglerWatch:
    """Finds a straggler in repeated comparisons."""

    def __init__(self) -> None:
        self._suspect: int | None = None
        self._times = 0

    def compare(self, pace: Pace) -> Straggler | None:
        """Return the straggler, if there is one."""
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
