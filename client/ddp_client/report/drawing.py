"""Parts of a report's pictures: style, time axis, legend, gaps, and the SVG of a figure.

Colours come from CSS, text stays text, and a title and description serve screen readers.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from html import escape
from io import StringIO
from typing import Any, Final

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_client.report.model import Point, Report

WIDTH: Final = 7.2
"""In inches, matplotlib's unit; the page scales it to its own width."""
_UNITS: Final = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
COLORS: Final = {
    "ink": "#010203",
    "faint": "#010204",
    "grid": "#010205",
    "blue": "#010206",
    "orange": "#010207",
    "green": "#010208",
    "red": "#010209",
    "violet": "#01020a",
    "grey": "#01020b",
}
"""The page's CSS variables, and the placeholder colour of each in a drawing."""
_STYLE: Final[Any] = {  # matplotlib's types name each key there is
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": COLORS["ink"],
    "axes.edgecolor": COLORS["faint"],
    "axes.labelcolor": COLORS["ink"],
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "grid.color": COLORS["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLORS["faint"],
    "ytick.color": COLORS["faint"],
    "xtick.labelcolor": COLORS["ink"],
    "ytick.labelcolor": COLORS["ink"],
    "legend.frameon": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "path.simplify": True,
}
_HEAD: Final = re.compile(r"^.*?<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)
_METADATA: Final = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_IDS: Final = re.compile(r"(\bid=\"|xlink:href=\"#|url\(#)")
_TAGS: Final = re.compile(r"<[^>]*>")
_DIGITS: Final = re.compile(r"(\.\d{2})\d+")


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


def canvas(height: float) -> tuple[Figure, Axes]:
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


@contextmanager
def styled() -> Iterator[None]:
    """Draw with this style alone: matplotlib has read a matplotlibrc of the working directory."""
    with rc_context():
        rcdefaults()
        rcParams.update(_STYLE)
        yield


def write(figure: Figure, *, name: str, title: str, description: str) -> str:
    """Return the figure as an element of a page; `name` must be unique there."""
    file = StringIO()
    with styled(), rc_context({"svg.hashsalt": name}):
        figure.savefig(
            file,
            format="svg",
            bbox_inches="tight",
            pad_inches=0.05,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    drawn = _METADATA.sub("", file.getvalue())
    head = _HEAD.match(drawn)
    if head is None:
        raise RuntimeError("matplotlib wrote no SVG that has a viewBox")
    rest = _TAGS.sub(lambda tag: _themed(tag[0], name), drawn[head.end() :])
    return (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{head[1]}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{rest}'
    )


def _themed(tag: str, name: str) -> str:
    """Return a tag with unique IDs, the theme's colours, and fewer digits."""
    if tag.startswith("</"):
        return tag
    tag = _IDS.sub(rf"\1{name}-", tag)
    for color, stands in COLORS.items():
        tag = tag.replace(stands, f"var(--{color})")
    return _DIGITS.sub(r"\1", tag)
