"""Convert a matplotlib figure to an SVG for a page.

Colours come from CSS, text stays text, and a title and description serve screen readers.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import Any, Final

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.figure import Figure

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
