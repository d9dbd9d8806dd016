"""Shared parts of a report's pictures: width, time axis, legend and gaps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_client.report.model import Point, Report
from ddp_client.report.svg import COLORS

WIDTH: Final = 7.2
"""In inches, matplotlib's unit; the page scales it to its own width."""
_UNITS: Final = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True)
class Scale:
    """A time axis from the job's creation, in a unit that fits its length."""

    begin: float
    length: float

    @property
    def unit(self) -> tuple[float, str]:
        """The unit's seconds and its name."""
        return next((unit for unit in _UNITS if self.length >= 2 * unit[0]), _UNITS[-1])

    def at(self, moment: datetime | float) -> float:
        """Return a moment's position on the axis."""
        time = moment.timestamp() if isinstance(moment, datetime) else moment
        return (time - self.begin) / self.unit[0]

    @property
    def label(self) -> str:
        """The label of the axis."""
        return f"{self.unit[1]} since the job was created"


def scale_of(report: Report) -> Scale:
    """Return the scale from the job's creation to its end, or to now."""
    begin = report.created.timestamp()
    return Scale(begin, max((report.ended or report.made_at).timestamp() - begin, 1.0))


def with_gaps(
    xs: Sequence[float], ys: Sequence[float], points: Sequence[Point]
) -> tuple[list[float], list[float]]:
    """Return the coordinates with a gap wherever training was interrupted."""
    left: list[float] = []
    right: list[float] = []
    for at, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if at and points[at].breaks:
            left.append(x)
            right.append(math.nan)
        left.append(x)
        right.append(y)
    return left, right


def drawing(height: float) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes."""
    figure = Figure(figsize=(WIDTH, height + 0.5), layout="constrained")
    return figure, figure.subplots()


def legend(axes: Axes, entries: Sequence[tuple[str, str]]) -> None:
    """Add a legend of colours above the axes."""
    handles: list[Any] = [
        axes.barh(0, 0, color=COLORS[color], label=name) for name, color in entries
    ]
    axes.legend(
        handles=handles, ncols=len(entries), loc="lower left", bbox_to_anchor=(0, 1), fontsize=8
    )


def or_gap(value: float | None) -> float:
    """Return a number to draw; NaN, which leaves a gap, for None."""
    return math.nan if value is None else value
