"""Draw `recovery.svg` from a real run on this machine:

    python -m ddp_client.local manifests/examples/digits-gloo.yaml \
        --workdir run --kill-rank 1@step100
    python docs/pictures/recovery.py run > docs/pictures/recovery.svg
"""

import io
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
from ddp_client.report import build
from ddp_client.report.files import read_run
from matplotlib.figure import Figure

_INK = "#6e7781"
"""Readable on white and black, because an image in a page has no dark mode."""
_GREEN, _RED, _BLUE = "#2da44e", "#cf222e", "#0969da"


def draw(run: Path) -> str:
    """Return the picture of the run's recovery: the pods' lifetimes and the steps."""
    report = build(read_run(run))
    [recovery] = report.recoveries
    began = report.created.timestamp()
    failed = recovery.time.timestamp() - began
    back = failed + (recovery.seconds or 0.0)
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "recovery"
    for color in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color"):
        mpl.rcParams[color] = _INK
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    lives, steps = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.6))
    for row, pod in enumerate(report.pods):
        left = (pod.started or report.created).timestamp() - began
        right = pod.ended.timestamp() - began if pod.ended else back
        lives.barh(row, right - left, left=left, color=_GREEN, height=0.6)
    killed = next(row for row, pod in enumerate(report.pods) if pod.name == recovery.pod)
    lives.plot(failed, killed, "X", color=_RED, markersize=9)
    names = [f"rank {pod.ranks}" for pod in report.pods]
    lives.set_yticks(range(len(names)), names)
    lives.set_xlim(0)
    lives.invert_yaxis()
    lives.annotate(
        "killed", (failed, killed), (6, 0), textcoords="offset points", color=_RED, va="center"
    )
    # A repeated step would be in the curve, even if the report has no record of it.
    assert all(a.step < b.step for a, b in pairwise(report.points))
    lost = "no step" if not report.steps_lost else f"{report.steps_lost} steps"
    timed = [(point.time - began, point.step) for point in report.points if point.time is not None]
    steps.plot(*zip(*timed, strict=True), ".-", color=_BLUE)
    steps.axvspan(failed, back, color=_RED, alpha=0.15, linewidth=0)
    said = f"{back - failed:.1f} s later the next step, {lost} lost"
    steps.annotate(
        said, (back, steps.get_ylim()[0]), (8, 12), textcoords="offset points", color=_INK
    )
    steps.set_ylabel("step")
    steps.set_xlabel("seconds since the job was created")
    for axes in (lives, steps):
        axes.patch.set_alpha(0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_INK)
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    title = "<title>A rank is killed during training; training continues</title>"
    head, _, rest = text.getvalue().partition("<defs>")
    return f"{head}{title}\n<defs>{rest}"


if __name__ == "__main__":
    sys.stdout.write(draw(Path(sys.argv[1])))
