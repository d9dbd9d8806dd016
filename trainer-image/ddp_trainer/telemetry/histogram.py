"""A histogram of step durations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Inclusive upper bounds of the buckets in seconds: for tiny models on CPUs up to large models."""


class Histogram:
    """Counts values."""

    def __init__(self, counts: Sequence[int] = (), *, total: float = 0.0) -> None:
        """`counts`, `total`: values of a histogram to continue."""
        fits = len(counts) == len(BOUNDS) + 1
        self.counts = list(counts) if fits else [0] * (len(BOUNDS) + 1)
        """By bucket; the last one counts values above all bounds."""
        self.total = total if fits else 0.0
        """The sum of all values."""

    def observe(self, values: Iterable[float]) -> None:
        """Count some values."""
        for value in values:
            self.counts[bisect_left(BOUNDS, value)] += 1
            self.total += value
