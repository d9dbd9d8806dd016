"""The pictures of a report. Tables show the same data."""

import math
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddp_client.report.drawing import (
    COLORS,
    WIDTH,
    Scale,
    canvas,
    legend,
    or_gap,
    scale_of,
    styled,
    with_gaps,
    write,
)
from ddp_client.report.history import PHASES
from ddp_client.report.model import COMPLETED, PARTS, Report
from ddp_client.text import number

_SHORTEST: Final = 0.01
"""Shortest time axis, in its unit: a new job needs one too."""
_BARS: Final = 40
"""Most pods of a timeline: more are unreadable."""
_KINDS: Final = {
    "training": "green",
    "starting": "blue",
    "pending": "violet",
    "lost": "red",
    "suspended": "grey",
}
_SPENT: Final = ("orange", "green", "blue", "violet")
_STEPS: Final = ("grey", "violet", "blue", "orange", "green")


def draw(report: Report) -> dict[str, str]:
    """Return all pictures that have data, by name."""
    scale = scale_of(report)
    drawings: dict[str, str] = {}
    with styled():
        if report.pods:
            drawings["timeline"] = _timeline(report, scale)
        if any(part is not None for r in report.recoveries for part in r.parts):
            drawings["recoveries"] = _recoveries(report)
        if any(seconds for _, seconds in report.goodput):
            drawings["goodput"] = _goodput(report)
        if any(point.loss is not None for point in report.points):
            drawings["loss"] = _curves(report, scale, "loss")
        if report.scores:
            drawings["accuracy"] = _accuracy(report)
        if any(point.samples_per_second is not None for point in report.points):
            drawings["throughput"] = _curves(report, scale, "throughput")
        if report.step_times is not None:
            drawings["steps"] = _step_times(report)
        if any(point.phases for point in report.points):
            drawings["phases"] = _phases(report)
        if report.saves and any(row.seconds is not None for row in report.saves.rows):
            drawings["checkpoints"] = _checkpoints(report)
    return drawings


def _timeline(report: Report, scale: Scale) -> str:
    pods = report.pods[-_BARS:]
    figure, axes = canvas(0.5 + 0.26 * len(pods))
    end = (report.ended or report.made_at).timestamp()
    for row, pod in enumerate(pods):
        begin = pod.created or pod.scheduled or pod.started
        last = pod.ended.timestamp() if pod.ended else end
        stops = [
            (begin, "violet"),
            (pod.scheduled, "blue"),
            (pod.started, "green"),
        ]
        known = [(moment.timestamp(), color) for moment, color in stops if moment]
        for at, (left, color) in enumerate(known):
            right = known[at + 1][0] if at + 1 < len(known) else last
            width = max(right - left, 0.0) / scale.unit[0]
            axes.barh(row, width, left=scale.at(left), height=0.62, color=COLORS[color])
        bad = pod.ended is not None and pod.end != COMPLETED
        if pod.ended is not None:
            mark, color = ("X", "red") if bad else ("o", "ink")
            axes.plot(scale.at(pod.ended), row, mark, color=COLORS[color], markersize=5)
    axes.set_yticks(range(len(pods)), [_bar_name(pod.name, pod.ranks) for pod in pods])
    axes.set_ylim(len(pods) - 0.4, -0.6)
    axes.set_xlim(0, max(scale.at(end), _SHORTEST) * 1.02)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(scale.label)
    legend(axes, [("no node yet", "violet"), ("starting", "blue"), ("trainer runs", "green"),
                   ("failed", "red")])  # fmt: skip
    failures = len(report.recoveries)
    text = f"A bar for each of {len(pods)} pods, with {failures} failures on record."
    return write(figure, name="timeline", title="Attempts and pods over time", description=text)


def _bar_name(name: str, ranks: str) -> str:
    short = name if len(name) <= 28 else f"…{name[-27:]}"
    return f"{short}  rank {ranks}" if ranks else short


def _recoveries(report: Report) -> str:
    some = [r for r in report.recoveries if any(part is not None for part in r.parts)]
    figure, axes = canvas(0.7 + 0.3 * len(some))
    for row, recovery in enumerate(some):
        left = 0.0
        for part, color in zip(recovery.parts, _STEPS, strict=True):
            if part is None:
                break  # later parts have no known position
            axes.barh(row, part, left=left, height=0.6, color=COLORS[color])
            left += part
    axes.set_yticks(range(len(some)), [_bar_name(r.pod, "") for r in some])
    axes.set_ylim(len(some) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds since the failure")
    legend(axes, list(zip(PARTS, _STEPS, strict=True)))
    text = f"A bar for each of {len(some)} failures: the time until the next step."
    return write(figure, name="recoveries", title="Recoveries", description=text)


def _goodput(report: Report) -> str:
    figure, axes = canvas(0.75)
    total = sum(seconds for _, seconds in report.goodput)
    left = 0.0
    shown = [(kind, seconds) for kind, seconds in report.goodput if seconds]
    for kind, seconds in shown:
        share = 100 * seconds / total
        axes.barh(0, share, left=left, height=0.8, color=COLORS[_KINDS.get(kind, "grey")])
        left += share
    axes.set_yticks([])
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the job's age")
    axes.grid(visible=False)
    legend(axes, [(kind, _KINDS.get(kind, "grey")) for kind, _ in shown])
    text = ", ".join(f"{kind} {100 * seconds / total:.0f} percent" for kind, seconds in shown)
    title = "How the job's time was spent"
    return write(figure, name="goodput", title=title, description=text)


def _curves(report: Report, scale: Scale, what: str) -> str:
    """Draw a quantity over steps, and below it over wall time if that is known."""
    times = [scale.at(p.time) for p in report.points if p.time is not None]
    is_timed = len(times) == len(report.points)
    figure = Figure(figsize=(WIDTH, 4.2 if is_timed else 2.1), layout="constrained")
    upper, lower = figure.subplots(2, 1) if is_timed else (figure.subplots(), None)
    is_loss = what == "loss"
    for axes, xs in ((upper, [float(p.step) for p in report.points]), (lower, times)):
        if axes is None:
            continue
        ys = [or_gap(p.loss if is_loss else p.samples_per_second) for p in report.points]
        if is_loss and any(p.loss_low != p.loss_high for p in report.points):
            low = [or_gap(p.loss_low) for p in report.points]
            high = [or_gap(p.loss_high) for p in report.points]
            axes.fill_between(xs, low, high, color=COLORS["blue"], alpha=0.25, linewidth=0)
        gap = with_gaps(xs, ys, report.points)
        axes.plot(*gap, color=COLORS["blue"], linewidth=1.4, marker="." if len(xs) == 1 else "")
        axes.set_ylabel("loss" if is_loss else "samples per second")
        if not is_loss:
            axes.set_ylim(0, 1.1 * max((y for y in ys if not math.isnan(y)), default=1) or 1)
    upper.set_xlabel("step")
    if lower is not None:
        lower.set_xlabel(scale.label)
        _mark_recoveries(lower, report, scale)
    known = [y for y in ys if not math.isnan(y)]
    text = f"From {number(known[0])} to {number(known[-1])}; lowest {number(min(known))}, highest "
    text += f"{number(max(known))}. Red: from a failure to the next step."
    title = "Loss" if is_loss else "Throughput"
    title += " over steps and over wall time"
    return write(figure, name=what, title=title, description=text)


def _mark_recoveries(axes: Axes, report: Report, scale: Scale) -> None:
    for recovery in report.recoveries:
        begin = scale.at(recovery.time)
        axes.axvline(begin, color=COLORS["red"], linewidth=0.9)
        if recovery.seconds:
            end = begin + recovery.seconds / scale.unit[0]
            axes.axvspan(begin, end, color=COLORS["red"], alpha=0.18, linewidth=0)


def _accuracy(report: Report) -> str:
    figure, axes = canvas(1.6)
    steps, scores = zip(*report.scores, strict=True)
    marker = "." if len(scores) <= 60 else ""
    axes.plot(steps, scores, color=COLORS["green"], linewidth=1.4, marker=marker)
    axes.set_xlabel("step")
    axes.set_ylabel("accuracy")
    text = f"From {number(scores[0])} to {number(scores[-1])}; best {number(max(scores))}."
    return write(figure, name="accuracy", title="Accuracy over steps", description=text)


def _step_times(report: Report) -> str:
    times = report.step_times
    assert times is not None
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    axes, beside = figure.subplots(1, 2, width_ratios=(3, 2))
    unit, unit_name = (1e3, "milliseconds") if times.bounds[-1] < 1 else (1.0, "seconds")
    edges = [bound * unit for bound in times.bounds]
    axes.stairs(times.counts, edges, fill=True, color=COLORS["blue"])
    for value, name, side in ((times.median, "median", "right"), (times.p99, "99 %", "left")):
        axes.axvline(value * unit, color=COLORS["ink"], linewidth=0.8, linestyle=":")
        axes.annotate(name, (value * unit, 1), xycoords=("data", "axes fraction"), fontsize=8,
                      rotation=90, va="top", ha=side)  # fmt: skip
    axes.set_xlabel(f"{unit_name} per step")
    axes.set_ylabel("steps")
    shown = report.ranks[:8]
    if shown:
        beside.barh(range(len(shown)), [100 * rank.share for rank in shown], color=COLORS["orange"])
        beside.set_yticks(range(len(shown)), [f"rank {rank.rank}" for rank in shown])
        beside.invert_yaxis()
        beside.set_xlabel("percent of intervals as the slowest")
        beside.grid(axis="y", visible=False)
    else:
        beside.set_axis_off()
    text = f"Median {times.median:.4g} s per step, 99 percent within {times.p99:.4g} s."
    title = "Step times, and the slowest rank"
    return write(figure, name="steps", title=title, description=text)


def _phases(report: Report) -> str:
    figure, axes = canvas(1.9)
    points = [point for point in report.points if point.phases]
    shares: list[list[float]] = [[] for _ in PHASES]
    for point in points:
        total = sum(point.phases or ()) or 1.0
        for at, seconds in enumerate(point.phases or ()):
            shares[at].append(100 * seconds / total)
    steps = [point.step for point in points]
    colors = [COLORS[color] for color in _SPENT]
    if len(points) == 1:
        steps, shares = [steps[0] - 1, steps[0]], [2 * share for share in shares]
    axes.stackplot(steps, shares, colors=colors, linewidth=0)
    axes.set_ylim(0, 100)
    axes.set_xlim(steps[0], steps[-1])
    axes.set_xlabel("step")
    axes.set_ylabel("percent of the time")
    legend(axes, list(zip(PHASES, _SPENT, strict=True)))
    whole = sum(seconds for _, seconds in report.phase_seconds) or 1.0
    text = ", ".join(f"{kind} {100 * s / whole:.0f} percent" for kind, s in report.phase_seconds)
    title = "How rank 0's time was spent, over steps"
    return write(figure, name="phases", title=title, description=text)


def _checkpoints(report: Report) -> str:
    saves = report.saves
    assert saves is not None
    figure, axes = canvas(1.5)
    rows = [row for row in saves.rows if row.seconds is not None]
    axes.plot(
        [row.step for row in rows],
        [or_gap(row.seconds) for row in rows],
        color=COLORS["violet"],
        marker="o" if len(rows) <= 100 else "",
        markersize=4,
        linewidth=1,
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("seconds to write")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    text = f"{saves.known} checkpoints, the longest {saves.longest_seconds or 0:.3g} seconds."
    title = "Time to write checkpoints"
    return write(figure, name="checkpoints", title=title, description=text)
