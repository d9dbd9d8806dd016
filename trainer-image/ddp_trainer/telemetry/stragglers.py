"""Who holds the others up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

THRESHOLD = 1.5
"""A straggler needs this many times the median of the other ranks' own time."""
MINIMUM_SECONDS = 0.001
"""Per step, beyond that median: what is less is noise, and not worth a word."""
IN_A_ROW = 5
"""So many comparisons have to name the same rank: a hiccup makes no straggler."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The slowest rank, by its own time a step: before it waits for others."""

    rank: int
    seconds: float
    others_seconds: float
    """The median of the others."""

    @property
    def ratio(self) -> float:
        """How many times slower than the others."""
        return self.seconds / self.others_seconds

    def __str__(self) -> str:
        return (
            f"rank {self.rank} holds the others up: it needs {self.seconds:.3g} s a step by itself,"
            f" {self.ratio:.1f} times the median of the others"
        )


class StragglerWatch:
    """Compares ranks now and then."""

    def __init__(self) -> None:
        self._suspect: int | None = None
        self._times = 0

    def compare(self, own_seconds: Sequence[float]) -> Straggler | None:
        """The straggler, if there is one; `own_seconds` of a step, by rank."""
        slowest = _slowest(own_seconds)
        suspect = slowest.rank if slowest is not None else None
        self._times = self._times + 1 if suspect == self._suspect else 1
        self._suspect = suspect
        return slowest if self._times >= IN_A_ROW else None


def _slowest(own_seconds: Sequence[float]) -> Straggler | None:
    if len(own_seconds) < 2:
        return None
    rank = max(range(len(own_seconds)), key=own_seconds.__getitem__)
    others = median([*own_seconds[:rank], *own_seconds[rank + 1 :]])
    excess = own_seconds[rank] - others
    if others <= 0 or excess < MINIMUM_SECONDS or own_seconds[rank] < THRESHOLD * others:
        return None
    return Straggler(rank=rank, seconds=own_seconds[rank], others_seconds=others)
