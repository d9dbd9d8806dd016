"""An independent stopwatch of a job's time, from what happened and the times of its steps alone.

Its definition is in docs/concepts/progress.md. It shares no code with the operator, and knows
nothing that the operator has stored.
"""

from dataclasses import dataclass, field
from itertools import pairwise

Seconds = dict[str, float]


@dataclass
class Times:
    """Events of a job, in seconds of the history."""

    created: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    """When each step was completed, and its number, in the order of time."""
    interruptions: list[float] = field(default_factory=list)
    """When a failure or a restart stopped the training, or pods before they trained."""
    suspended: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    placed: list[float] = field(default_factory=list)
    """When all pods had a node."""
    ended: float = 0.0


def committed(steps: list[tuple[float, int]]) -> list[float]:
    """Return when those steps were completed that were not trained again later."""
    times, first_later = [], float("inf")
    for time, step in reversed(steps):
        if step < first_later:
            times.append(time)
            first_later = step
    return times[::-1]


def measure(times: Times) -> Seconds:
    """Return the seconds of a job's age by use."""
    spent = dict.fromkeys(("pending", "starting", "training", "lost", "suspended"), 0.0)
    marks = [(times.created, "start")]
    marks += [(time, "suspend") for time in times.suspended]
    marks += [(time, "start") for time in times.resumed]
    marks += [(time, "step") for time in committed(times.steps)]
    marks = [*sorted(marks), (times.ended, "end")]
    for (begin, kind), (end, _) in pairwise(marks):
        if kind == "suspend":
            spent["suspended"] += end - begin
        elif kind == "start":
            _start(times, begin, end, spent)
        else:
            is_broken = any(begin < time < end for time in times.interruptions)
            spent["lost" if is_broken else "training"] += end - begin
    return spent


def _start(times: Times, begin: float, end: float, spent: Seconds) -> None:
    """Divide the time from a start to its first committed step."""
    stops = [*times.interruptions, *(time for time, _ in times.steps)]
    started = min((time for time in stops if begin < time <= end), default=end)
    placed = min((time for time in times.placed if begin <= time <= started), default=started)
    spent["pending"] += placed - begin
    spent["starting"] += started - placed
    spent["lost"] += end - started
