"""A curve drawn in one line of text."""

import math
from collections.abc import Sequence
from typing import Final

from ddp_client.text import number

_MARKS: Final = "▁▂▃▄▅▆▇█"
POINTS: Final = 40
"""Columns of a curve; each is the mean of a stretch of values, all of equal length."""


class Losses:
    """The losses seen so far, by step; bounded."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []

    def add(self, step: int, loss: float | None) -> None:
        """Add a step's loss; a step that is trained again replaces later losses."""
        if loss is None or not math.isfinite(loss):
            return
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        self._points.append((step, loss))
        if len(self._points) > 100 * POINTS:
            del self._points[1::2]

    def line(self) -> str:
        """Return a line such as `2.1 ▇▅▃▂▁▁ 0.12`; empty with fewer than two losses."""
        if len(self._points) < 2:
            return ""
        losses = [loss for _, loss in self._points]
        return f"{number(losses[0])} {curve(losses)} {number(losses[-1])}"


def curve(values: Sequence[float]) -> str:
    """Return at most `POINTS` marks; the lowest mark is the smallest value."""
    size = min(len(values), POINTS)
    means: list[float] = []
    for at in range(size):
        stretch = values[at * len(values) // size : (at + 1) * len(values) // size]
        means.append(math.fsum(stretch) / len(stretch))
    low, high = min(means), max(means)
    scale = (len(_MARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_MARKS[round((mean - low) * scale)] for mean in means)
