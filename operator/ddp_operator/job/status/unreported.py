"""Corrects how a job spent its time, once a report shows what groups did before it.

The time from ready pods to the loss of a group that reported no step counts as training in
`goodput.unreported`. In an outage all time counts as lost. Both last until the next group reports
when the lost ones completed their first steps.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.status import DDPJobStatus, Goodput, Outage, Progress, Unreported
from ddp_operator.job.status.progress import ReportedFirstStep, ReportedResumption

FirstSteps = Sequence[ReportedFirstStep]
_SECOND: Final = timedelta(seconds=1)
"""Precision of stored times."""


def settled(books: Goodput, after: DDPJobStatus, first_steps: FirstSteps | None) -> Goodput:
    """Return the books without unreported time, if a report shows when groups began to train."""
    told = after.progress
    if first_steps is None or told is None or not books.unreported:
        return books
    if told.resumed_at is None:  # nothing more will be known
        return books.updated(unreported=())
    if told.resumed_at < books.unreported[-1].until:
        return books  # a report of the lost group
    if told.step == told.resumed_step and not after.finished:
        return books  # its first step tells more
    earlier = [each for each in first_steps if each.time < told.resumed_at]
    if not earlier and told.resumed_step:  # other groups trained, and it is unknown when
        return books.updated(unreported=())
    for stretch in books.unreported:
        inside = [each for each in earlier if stretch.since <= each.time <= stretch.until]
        began = inside[0].time if inside else stretch.until
        name = "lost_seconds" if stretch.restarted else "starting_seconds"
        books = moved(books, began - stretch.since, to=name)
        if inside:
            lowest = _lowest(told, first_steps, after=began)
            kept = _saved_until(inside[0], lowest, after, first_steps, until=stretch.until)
            books = moved(books, stretch.until - max(kept, began), to="lost_seconds")
    outage = books.outage
    if outage and (again := _lowest(told, first_steps, after=outage.began)):
        # Steps that are trained again have just been booked as lost.
        outage = outage.updated(until_step=min(outage.until_step, again.step))
    return books.updated(unreported=(), outage=outage)


def with_trained(
    books: Goodput,
    outage: Outage,
    after: DDPJobStatus,
    first_steps: FirstSteps,
    counted: Sequence[Unreported],
) -> Goodput:
    """Return the books with the steps that groups completed in an outage, before they were lost
    without a report, if later groups did not repeat them. `counted`: stretches that counted as
    training.
    """
    told = after.progress
    if told is None or told.resumed_at is None:
        return books
    earlier = [each for each in first_steps if outage.began < each.time < told.resumed_at]
    for first in earlier:
        if any(each.since <= first.time <= each.until for each in counted):
            continue
        ends = [each.time for each in after.failures] + [each.time for each in earlier]
        until = min((time for time in ends if time > first.time), default=told.resumed_at)
        lowest = _lowest(told, first_steps, after=first.time)
        if lowest is None:
            continue
        kept = _saved_until(first, lowest, after, first_steps, until=until) - first.time
        resumed = lowest.step - 1
        new = resumed - max(outage.until_step, first.step)
        kept *= max(new, 0) / max(resumed - first.step, 1)
        books = moved(books, kept, source="lost_seconds", to="training_seconds")
    return books


def kept_until(
    outage: Outage, before: DDPJobStatus, after: DDPJobStatus, first_steps: FirstSteps
) -> datetime:
    """Return until when the lost group trained steps that the next groups did not repeat, if they
    resumed from a newer step than was known.
    """
    told, stopped = after.progress, outage.began
    assert told is not None
    later = [each for each in first_steps if each.time > stopped]
    if told.resumed_at is not None and _trained_on(stopped, after):
        stopped = max(min([told.resumed_at, *(each.time for each in later)]), stopped)
    lowest = _lowest(told, first_steps, after=outage.began)
    resumed, recorded = (lowest.step - 1, lowest.before) if lowest else (None, None)
    step, saved = outage.until_step - 1, outage.lost_from
    known = [(step, saved)]
    checkpoints = [before.checkpoint, after.checkpoint]
    if recorded and recorded.step > step:
        known, checkpoints = [(recorded.step, recorded.time)], []
    longest = _pace_before(outage, told, first_steps, slack=_SECOND)
    for each in checkpoints:
        if each and each.time and outage.until_step <= each.step + 1:
            # Later groups may have saved, too. A rank that waits for others saves long after its
            # last step.
            is_old = each.time <= (outage.since if resumed is None else stopped)
            if each.step == resumed or (is_old and (resumed is None or each.step < resumed)):
                latest = saved + longest * (each.step - step) if longest else each.time
                known.append((each.step, min(each.time, latest)))
    step, saved = max(known)
    if resumed is not None and resumed > step:
        saved += _pace_before(outage, told, first_steps) * (resumed - step)
    return min(saved, stopped)


def completed(step: int, told: Progress, first_steps: FirstSteps) -> datetime | None:
    """Return when the reporting group completed a step, if its steps are equally long. None: it
    does not report when it began.
    """
    first = _first_of(told, first_steps)
    if first is None:
        return None
    step = max(step, (told.resumed_step or 0) + 1)
    return first.time + pace(told, first_steps) * max(step - first.step, 0)


def pace(told: Progress, first_steps: FirstSteps, *, slack: timedelta = timedelta()) -> timedelta:
    """Return how long a step of the reporting group takes; 0 if that is unknown.

    `slack`: is added to the time of all steps.
    """
    first, last = _first_of(told, first_steps), told.last_step_time
    if first is None or told.resumed_at is None or last is None:
        return timedelta()
    if told.step == first.step:  # the first step is longer than others
        first = ReportedResumption(step=told.resumed_step or 0, time=told.resumed_at)
    return (max(last - first.time, timedelta()) + slack) / max(told.step - first.step, 1)


def moved(books: Goodput, time: timedelta, *, to: str, source: str = "training_seconds") -> Goodput:
    """Return the books with time booked to another use."""
    seconds = min(max(int(time.total_seconds()), 0), getattr(books, source))
    return books.updated(
        **{source: getattr(books, source) - seconds, to: getattr(books, to) + seconds}
    )


def _lowest(
    told: Progress, first_steps: FirstSteps, *, after: datetime
) -> ReportedFirstStep | None:
    """Return the first step of the group that resumed at the lowest step: the reporting group, or
    another one after that time; None: unknown.
    """
    if told.resumed_step is None or told.resumed_at is None:
        return None
    own = ReportedFirstStep(step=told.resumed_step + 1, time=told.resumed_at)
    later = [each for each in first_steps if each.time > after]
    return min([*later, own], key=lambda each: each.step)


def _trained_on(stopped: datetime, after: DDPJobStatus) -> bool:
    """Return whether no process had ended in the failure at that time: a pod was deleted."""
    return any(each.time == stopped and each.exit_code is None for each in after.failures)


def _pace_before(
    outage: Outage, told: Progress, first_steps: FirstSteps, *, slack: timedelta = timedelta()
) -> timedelta:
    """Return how long a step of the lost group took, or else of the reporting one: see `pace`."""
    step, time = outage.until_step - 1, outage.lost_from
    begun = [each for each in first_steps if each.time < time + _SECOND]
    if not begun or begun[-1].step >= step or begun[-1].time > time - _SECOND:
        return pace(told, first_steps, slack=slack)
    return (time - begun[-1].time + slack) / (step - begun[-1].step)


def _first_of(told: Progress, first_steps: FirstSteps) -> ReportedResumption | None:
    """Return the first step of the reporting group; without it, where the group began."""
    if told.resumed_at is None:
        return None
    began = ReportedResumption(step=told.resumed_step or 0, time=told.resumed_at)
    return next((e for e in first_steps if e.time >= began.time and e.step <= told.step), began)


def _saved_until(
    first: ReportedResumption,
    lowest: ReportedFirstStep | None,
    after: DDPJobStatus,
    first_steps: FirstSteps,
    *,
    until: datetime,
) -> datetime:
    """Return until when steps since a group's `first` one were saved, at most `until`.

    `lowest`: the first step of the later group that resumed at the lowest one. If it has no record
    of earlier steps, they are as long as those of the last group.
    """
    told, saved = after.progress, after.checkpoint
    assert told is not None
    if lowest is None or lowest.step - 1 < first.step:
        return first.time
    resumed, recorded = lowest.step - 1, lowest.before
    if recorded and recorded.step > first.step:
        long = max(recorded.time - first.time, timedelta()) / (recorded.step - first.step)
        return min(first.time + long * (resumed - first.step), until)
    if saved and saved.time and saved.step == resumed:
        return min(max(saved.time, first.time), until)
    if after.failures and after.failures[-1].action == "RestartPod":  # from memory
        return until
    return min(first.time + pace(told, first_steps) * (resumed - first.step), until)
