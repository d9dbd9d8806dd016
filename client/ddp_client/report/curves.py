"""Reduce the trainer's measurements to what a report can show."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from ddp_operator.job.status import curve

from ddp_client.report.history import PHASES, History, Interval
from ddp_client.report.model import Point, RankPace, Saves, StepTimes

MOST_POINTS: Final = 500
_BINS: Final = 24
_MOST_RANKS: Final = 20
MOST_ROWS: Final = 50


def points(history: History) -> tuple[Point, ...]:
    """Return the intervals in groups of equal size; each keeps the extremes of the loss."""
    intervals = history.intervals
    each = max(-(-len(intervals) // MOST_POINTS), 1)
    starts = sorted(start.step for start in history.starts)
    result: list[Point] = []
    for at in range(0, len(intervals), each):
        some = intervals[at : at + each]
        before = intervals[at - 1].step if at else -1
        breaks = bisect_right(starts, some[-1].step) > bisect_right(starts, before)
        result.append(_point(some, breaks=breaks))
    return tuple(result)


def kept_points(text: str) -> tuple[Point, ...]:
    """Return the losses that the job's status keeps, for a job without its metrics.jsonl."""
    return tuple(
        Point(
            step=row.step,
            time=None,
            loss=row.loss,
            loss_low=row.loss,
            loss_high=row.loss,
            samples_per_second=None,
            phases=None,
            breaks=False,
        )
        for row in curve.rows(text)
        if row.loss is not None
    )


def kept_scores(text: str) -> tuple[tuple[int, float], ...]:
    """Return step and accuracy of the evaluations that the job's status keeps."""
    return tuple((row.step, row.accuracy) for row in curve.rows(text) if row.accuracy is not None)


def phase_seconds(history: History) -> tuple[tuple[str, float], ...]:
    """Return rank 0's seconds by phase."""
    known = [interval.phases for interval in history.intervals if interval.phases]
    if not known:
        return ()
    return tuple(zip(PHASES, map(sum, zip(*known, strict=True)), strict=True))


def step_times(history: History) -> StepTimes | None:
    """Return the distribution of step times; None without data."""
    means = sorted(_mean_steps(history))
    total = sum(steps for _, steps in means)
    if total == 0:
        return None
    longest = [i.longest_step for i in history.intervals if i.longest_step is not None]
    p99 = _quantile(means, total, 0.99)
    # One very long interval would squeeze all others into one bar: it counts in the last bar.
    low, high = means[0][0], min(means[-1][0], 2 * p99)
    width = (high - low) / _BINS or max(high, 1e-9) / _BINS
    bounds = tuple(low + number * width for number in range(_BINS + 1))
    counts = [0] * _BINS
    for seconds, steps in means:
        counts[min(int((seconds - low) / width), _BINS - 1)] += steps
    return StepTimes(
        steps=total,
        median=_quantile(means, total, 0.5),
        p95=_quantile(means, total, 0.95),
        p99=p99,
        longest=max(longest, default=None),
        bounds=bounds,
        counts=tuple(counts),
    )


def ranks(history: History) -> tuple[RankPace, ...]:
    """Return the slowest ranks, the most frequent first."""
    compared = [i for i in history.intervals if i.pace_rank is not None]
    by_rank: dict[int, list[Interval]] = {}
    for interval in compared:
        by_rank.setdefault(interval.pace_rank or 0, []).append(interval)
    most = sorted(by_rank.items(), key=lambda item: (-len(item[1]), item[0]))[:_MOST_RANKS]
    return tuple(_pace(rank, own, of=len(compared)) for rank, own in most)


def saves(history: History) -> Saves | None:
    """Return the checkpoints and their cost; None without any."""
    newest = {save.step: save for save in history.saves}
    took = [save.seconds for save in newest.values() if save.seconds is not None]
    waited = dict(phase_seconds(history)).get("checkpoint")
    if not newest and not waited:
        return None
    return Saves(
        rows=tuple(newest.values())[-MOST_POINTS:],
        known=len(newest),
        mean_seconds=sum(took) / len(took) if took else None,
        longest_seconds=max(took, default=None),
        held_up_seconds=waited,
    )


def _point(some: Sequence[Interval], *, breaks: bool) -> Point:
    losses = [i.loss for i in some if i.loss is not None]
    rates = [i.samples_per_second for i in some if i.samples_per_second is not None]
    phases = [i.phases for i in some if i.phases]
    return Point(
        step=some[-1].step,
        time=some[-1].time,
        loss=_mean(losses),
        loss_low=min(losses, default=None),
        loss_high=max(losses, default=None),
        samples_per_second=_mean(rates),
        phases=tuple(map(sum, zip(*phases, strict=True))) if phases else None,
        breaks=breaks,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _mean_steps(history: History) -> Iterable[tuple[float, int]]:
    """Yield seconds per step and the number of steps, for each interval without a restart."""
    starts = sorted(start.step for start in history.starts)
    for before, after in pairwise(history.intervals):
        steps = after.step - before.step
        is_new = bisect_left(starts, after.step + 1) > bisect_left(starts, before.step + 1)
        if steps <= 0 or is_new:
            continue
        # The trainer's phases exclude evaluations between steps.
        seconds = sum(after.phases) if after.phases else after.time - before.time
        if seconds > 0:
            yield seconds / steps, steps


def _quantile(means: Sequence[tuple[float, int]], total: int, share: float) -> float:
    passed = 0
    for seconds, steps in means:
        passed += steps
        if passed >= share * total:
            return seconds
    return means[-1][0]


def _pace(rank: int, own: Sequence[Interval], *, of: int) -> RankPace:
    ratios = [
        i.pace_seconds / i.others_seconds
        for i in own
        if i.pace_seconds is not None and i.others_seconds
    ]
    return RankPace(
        rank=rank,
        times=len(own),
        share=len(own) / of,
        mean_ratio=_mean(ratios),
        worst_ratio=max(ratios, default=None),
        held_up=sum(i.straggler == rank for i in own),
    )
