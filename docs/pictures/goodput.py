"""Draw `goodput.svg`, the result of the simulation in `failures`:

python -m docs.pictures.goodput > docs/pictures/goodput.svg
"""

import io
import sys
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from docs.pictures.failures import NODES, RATES, Costs, failures, goodput, ways

STAND_BY = 2
"""Spare nodes in the second panel."""
_INK = "#6e7781"
"""Readable on white and black, because an image in a page has no dark mode."""
_STYLE: Final[Any] = {  # matplotlib's types list every key
    "svg.fonttype": "none",
    "svg.hashsalt": "goodput",
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
}
_COLORS = ("#2da44e", "#0969da", "#cf222e")
_LEAST_PERCENT = 90
_CEILING_PERCENT = 100 * goodput(ways(Costs())[0], Costs(), [])
"""Without failures; checkpoints take time, too."""


def percent(stand_by: int) -> dict[str, list[float]]:
    """Return the goodput of each way at each rate; spares need a spare node."""
    costs = Costs()
    failed = [failures(rate) for rate in RATES.values()]
    return {
        way.name: [100 * goodput(way, costs, times, stand_by=stand_by) for times in failed]
        for way in ways(costs)
        if stand_by or not way.spares
    }


def draw() -> str:
    """Return the picture: goodput of each way without and with spare nodes."""
    with mpl.rc_context(_STYLE):
        return _drawn()


def _drawn() -> str:
    figure = Figure(figsize=(9, 3.7), layout="constrained")
    names = [way.name for way in ways(Costs())]
    titles = {0: "without spare nodes", STAND_BY: f"with {STAND_BY} spare nodes"}
    panels = figure.subplots(1, len(titles), sharey=True)
    for axes, (stand_by, title) in zip(panels, titles.items(), strict=True):
        found = percent(stand_by)
        for row, name in enumerate(names):
            if name not in found:
                continue
            axes.hlines(row, min(found[name]), max(found[name]), color=_INK, linewidth=1)
            axes.scatter(found[name], [row] * len(RATES), c=_COLORS, s=36, zorder=3)
            worst = min(found[name])
            axes.annotate(
                f"{worst:.1f}", (worst, row), (-8, 0), textcoords="offset points",
                ha="right", va="center", color=_INK,
            )  # fmt: skip
        axes.axvline(_CEILING_PERCENT, color=_INK, linewidth=1, linestyle=":")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlim(_LEAST_PERCENT, 100)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("goodput, % (dotted: without failures)")
        axes.patch.set_alpha(0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_INK)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    for color, (source, rate) in zip(_COLORS, RATES.items(), strict=True):
        panels[0].scatter(
            [], [], color=color, label=f"{rate * NODES:.1f} failures a day ({source})"
        )
    figure.legend(loc="outside upper center", ncols=len(RATES), frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    title = f"<title>Simulated goodput of a training on {NODES} nodes with failures</title>"
    head, _, rest = text.getvalue().partition("<defs>")
    return f"{head}{title}\n<defs>{rest}"


if __name__ == "__main__":
    sys.stdout.write(draw())
