"""Corrects the books with the reports of trainers.

A trainer's `trainedSeconds` is exact, even if the operator was away: the count is part of the
training's state, so it goes back with it. The first report of each group replaces the estimate:
training is that count, and the rest was lost.

For trainers that do not count, a start ends with the first step, and an outage at the trainer's own
time of a step, but never before the failure or in the future, even if the trainer's clock is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.status import DDPJobStatus, Goodput, Outage, Progress
from ddp_operator.job.status.books import (
    is_restart,
    use_of,
    with_booked,
    with_moved,
    with_training_since,
)
from ddp_operator.job.status.progress import ReportedResumption

FirstSteps = Sequence[ReportedResumption]

_BEFORE_TRAINING: Final = frozenset({"Pending", "Starting", "Restarting", "Suspended"})

_LEAVING: Final = timedelta(minutes=1)
"""How long a lost group may train on: deleted pods have a grace period."""


def with_reported_time(
    known: Goodput,
    before: DDPJobStatus,
    after: DDPJobStatus,
    *,
    now: datetime,
    started: datetime | None,
    first_steps: FirstSteps | None,
) -> tuple[Goodput, bool]:
    """Return the books as the report in `after` corrects them, and whether the time since then is
    training. `started`: when the last trainer started. `first_steps`: of groups; None: no report.
    """
    if count := _count_of(after.progress):
        counted = _as_reported(known, count, before, after, now=now, first_steps=first_steps)
        return counted or known, counted is not None
    times = [each.time for each in first_steps or ()]
    books = _first_step(known, before, after, started=started, now=now, times=times) or known
    ended = _ended(books, before, after, started=started, now=now)
    return ended or books, ended is not None


@dataclass(frozen=True)
class _Count:
    """What a trainer says of the time that training took."""

    trained: timedelta
    """Up to the last step."""
    last: datetime
    """When that step was completed."""
    formed: datetime
    """When its group formed."""


def _count_of(told: Progress | None) -> _Count | None:
    """Return the trainer's count; None if it does not count, or its group has made no step."""
    if told is None or told.trained_seconds is None:
        return None
    if told.last_step_time is None or told.resumed_at is None:
        return None
    trained = timedelta(seconds=told.trained_seconds)
    return _Count(trained, told.last_step_time, told.resumed_at)


def _as_reported(
    books: Goodput,
    count: _Count,
    before: DDPJobStatus,
    after: DDPJobStatus,
    *,
    now: datetime,
    first_steps: FirstSteps | None,
) -> Goodput | None:
    """Return the books with the time of training that the trainer reports; None if its group was
    counted before, or is not known to train now.

    What counted as training by mistake was lost, or the other way round. Of starts that no report
    had ended, the time before the first step counts as starting, if the trainer knows that step.
    """
    outage, last, formed = books.outage, count.last, count.formed
    if not _may_train(books, before, after):
        return None
    if not after.finished and (books.counted_group == formed or first_steps is None):
        return None  # the last report is known, but not when its groups began
    if outage is not None and last <= outage.since + _patience(formed, outage):
        return None
    times = [each.time for each in first_steps or ()]
    # If the first step is not recorded, it was completed after the group had formed.
    began = last - count.trained if count.trained < last - formed else formed
    first = min(last, now, min((time for time in times if formed <= time), default=began))
    for start in books.unreported if times else ():
        ends = [time for time in times if start.since <= time <= start.until]
        books = with_moved(
            books, min(ends, default=start.until) - start.since, to="starting_seconds"
        )
    if outage is not None:
        books = with_training_since(books, "lost_seconds", since=max(first, outage.since))
    elif _starts(books, before):
        books = with_training_since(books, "starting_seconds", since=first)
    else:
        books = with_booked(books, use_of(before.phase, books), min(last, now))
    trained = count.trained + (books.accounted_until - last)
    wrong = timedelta(seconds=books.training_seconds) - trained
    books = with_moved(books, wrong, to="lost_seconds")
    books = with_moved(books, -wrong, source="lost_seconds", to="training_seconds")
    return books.updated(outage=None, unreported=(), counted_group=formed)


def _starts(books: Goodput, before: DDPJobStatus) -> bool:
    """Return whether this is the first report since the job was created, or was suspended."""
    since, is_first = before.running_since, books.counted_group is None
    is_open = since is not None and books.accounted_until <= since
    return is_first and is_open and not (since and is_restart(before, since))


def _may_train(books: Goodput, before: DDPJobStatus, after: DDPJobStatus) -> bool:
    """Return whether a report can show that training continues, or had continued until now."""
    if before.phase == "Running" and books.outage is None:
        return True
    return before.phase in ("Restarting", "Running") and after.phase not in _BEFORE_TRAINING


def _patience(formed: datetime | None, outage: Outage) -> timedelta:
    """Return for how long a report may be that of the lost group, which may train on.

    If the trainer's clock is wrong, the new group looks like the lost one.
    """
    is_new = formed is None or formed >= outage.since
    return timedelta() if is_new else _LEAVING


def _first_step(
    books: Goodput,
    before: DDPJobStatus,
    after: DDPJobStatus,
    *,
    started: datetime | None,
    now: datetime,
    times: Sequence[datetime],
) -> Goodput | None:
    """Return the books with the time from ready pods to the first step; None if it is booked, or
    not complete.
    """
    since, old, new = before.running_since, before.progress, after.progress
    if since is None or books.accounted_until > since:
        return None
    restarted = is_restart(before, since)
    if books.outage is not None and restarted:
        return None
    if new is None or new.last_step_time is None or before.phase != "Running":
        return None
    if new.last_step_time <= since:
        return None  # a remaining pod's report of the lost group
    if old is not None and _has_reported(old, new, since, restarted=restarted):
        return None
    began = new.resumed_at or since
    made = new.step - (new.resumed_step or (old.step if old is not None else 0))
    # It may have completed more steps since: take them to be equally long.
    at = began + max(new.last_step_time - began, timedelta()) / max(made, 1)
    at = min((time for time in times if time >= min(since, began)), default=at)
    name = "lost_seconds" if restarted else "starting_seconds"
    return with_training_since(books, name, since=min(max(at, started or at), now))


def _has_reported(old: Progress, new: Progress, since: datetime, *, restarted: bool) -> bool:
    """Return whether a step of this start was reported before."""
    if old.last_step_time is not None and old.last_step_time > since:
        return True
    # An outage ended with the group's first step, before its pods were known to be ready.
    is_same = new.resumed_at is not None and old.resumed_at == new.resumed_at
    return restarted and is_same and old.step > (old.resumed_step or 0)


def _ended(
    books: Goodput,
    before: DDPJobStatus,
    after: DDPJobStatus,
    *,
    started: datetime | None,
    now: datetime,
) -> Goodput | None:
    """Return the books with the outage ended; None while it has not."""
    outage, progress = books.outage, after.progress
    if outage is None or progress is None or not _may_train(books, before, after):
        return None
    if not outage.until_step <= progress.step != progress.resumed_step:
        return None
    began = max(outage.since, started or outage.since)
    last = progress.last_step_time
    if last is None or last <= max(began, outage.since + _patience(progress.resumed_at, outage)):
        return None
    books = with_training_since(books, "lost_seconds", since=min(last, now))
    saved = after.checkpoint
    if saved and saved.time and saved.time <= outage.since and outage.until_step <= saved.step + 1:
        kept = saved.time - outage.lost_from  # it was not known yet
        books = with_moved(books, kept, source="lost_seconds", to="training_seconds")
    return books.updated(outage=None)
