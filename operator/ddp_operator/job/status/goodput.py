"""How a job spent its time, in whole seconds that add up exactly.

A stopwatch books each phase. The trainer's own count of its training time then divides the time
with running pods into training and lost: it is exact even if the operator was away, because it is
part of the training's state and goes back with it. Without a count, a running job trains.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from ddp_protocol.message import moment
from ddp_protocol.progress import Resumption

from ddp_operator.api.status import DDPJobStatus, Goodput, Phase, Stopwatch
from ddp_operator.job.status.progress import resumption

_FIELDS: Final[dict[Phase, str]] = {
    "Pending": "pending_seconds",
    "Starting": "starting_seconds",
    "Running": "training_seconds",
    "Restarting": "lost_seconds",
    "Suspended": "suspended_seconds",
}
"""Uses of time, as fields of the account, by phase."""
_KIND_OF: Final = {name: name.removesuffix("_seconds") for name in _FIELDS.values()}
KINDS: Final = tuple(_KIND_OF.values())
"""Ways to spend time."""


def spent(status: DDPJobStatus, *, created: datetime, now: datetime) -> Counter[str]:
    """Return the seconds of a job's age by use, with the open stretch as it looks now."""
    books, watch = _read(status, created)
    seconds = Counter[str]({kind: getattr(books, name) for name, kind in _KIND_OF.items()})
    if status.phase in _FIELDS:
        since = watch.accounted_until
        counts = _counted_group(status) is not None
        is_lost = status.phase == "Running" and counts and is_down(status)
        kind = "lost" if is_lost else _KIND_OF[_FIELDS[status.phase]]
        seconds[kind] += max(int((now - since).total_seconds()), 0)
    return seconds


def down_since(status: DDPJobStatus) -> datetime | None:
    """Return when the job last failed, if its trainer tells of no step since; otherwise None."""
    last = status.progress.last_step_time if status.progress else None
    failed = (each.time for each in reversed(status.failures) if each.action != "Ignore")
    failure = next(failed, None)
    return failure if last is not None and failure is not None and last <= failure else None


def is_down(status: DDPJobStatus) -> bool:
    """Return whether no step was completed since the last failure, as far as its trainer tells."""
    return down_since(status) is not None


def account(
    after: DDPJobStatus,
    *,
    before: DDPJobStatus,
    created: datetime,
    now: datetime,
    first_steps: Sequence[Resumption] | None = None,
) -> DDPJobStatus:
    """Return the planned status with the time until now booked, if phase or attempt changed since
    `before` or another group reports its count, and with lost steps. `first_steps`: of groups, by
    the trainer's report; None: no report.
    """
    if before.finished:
        return after
    books, watch = known = _read(after, created)
    group = _counted_group(after)
    is_new = group is not None and first_steps is not None and group != watch.counted_group
    is_last = group is not None and after.finished
    if is_new or is_last or (after.phase, after.attempt) != (before.phase, before.attempt):
        # A user may have stored a final phase that the conditions contradict.
        name = _FIELDS.get(before.phase, "pending_seconds")
        # Whole seconds, as stored; a clock that was set back books nothing.
        until = max(now.replace(microsecond=0), watch.accounted_until)
        seconds = int((until - watch.accounted_until).total_seconds())
        books = books.updated(**{name: getattr(books, name) + seconds})
        watch = watch.updated(accounted_until=until)
    if after.phase == "Running" != before.phase and not (watch.counted_group or watch.ready_since):
        watch = watch.updated(ready_since=now)
    if is_new or is_last:
        first_times = [moment(step.time) for step in first_steps or ()]
        books = _as_counted(books, watch, after, first_times)
        watch = watch.updated(counted_group=group, ready_since=None)
    if after.phase == "Suspended":
        watch = watch.updated(counted_group=None, ready_since=None)
    if resumed := _steps_lost(before, after):
        books = books.updated(steps_lost=books.steps_lost + resumed)
    if books is known[0] and watch is known[1]:
        return after
    return after.updated(goodput=books).noting(stopwatch=watch)


def _read(status: DDPJobStatus, created: datetime) -> tuple[Goodput, Stopwatch]:
    """Return the account so far. One without its stopwatch begins again, as it would not add up."""
    books, watch = status.goodput, status.bookkeeping.stopwatch
    if books is None or watch is None:
        return Goodput(), Stopwatch(accounted_until=created)
    return books, watch


def _counted_group(status: DDPJobStatus) -> datetime | None:
    """Return when the group formed whose trainer counts its training time; None: it does not, or
    the group has made no step.
    """
    told, notes = status.progress, status.bookkeeping
    if told is None or notes.trained_seconds is None or told.last_step_time is None:
        return None
    return notes.resumed_at


def _as_counted(
    books: Goodput, watch: Stopwatch, status: DDPJobStatus, first_steps: Sequence[datetime]
) -> Goodput:
    """Return the account in which running time is divided as the trainer counts it. What counted as
    training by mistake was lost, or the other way round.
    """
    told, notes = status.progress, status.bookkeeping
    if told is None or told.last_step_time is None or notes.resumed_at is None:
        return books
    last, formed = told.last_step_time, notes.resumed_at
    trained = timedelta(seconds=notes.trained_seconds or 0)
    if since := watch.ready_since:
        # A start ends with its first step, or with the failure that came before it.
        began = last - trained if trained < last - formed else formed
        ends = [time for time in first_steps if time >= since] or [max(began, since)]
        ends += [failure.time for failure in status.failures if failure.time >= since]
        ran = timedelta(seconds=books.training_seconds + books.lost_seconds)
        books = _with_moved(books, min(min(ends) - since, ran - trained), to="starting_seconds")
    if not is_down(status):
        trained += max(watch.accounted_until - last, timedelta())
    wrong = timedelta(seconds=books.training_seconds) - trained
    books = _with_moved(books, wrong, to="lost_seconds")
    return _with_moved(books, -wrong, source="lost_seconds", to="training_seconds")


def _steps_lost(before: DDPJobStatus, after: DDPJobStatus) -> int:
    """Return how many steps a new group repeats."""
    resumed, reached = resumption(before, after), before.progress
    return max(reached.step - resumed, 0) if reached and resumed is not None else 0


def _with_moved(
    books: Goodput, time: timedelta, *, to: str, source: str = "training_seconds"
) -> Goodput:
    """Return the account with time booked to another use, as far as there is any."""
    seconds = min(max(round(time.total_seconds()), 0), getattr(books, source))
    return books.updated(
        **{source: getattr(books, source) - seconds, to: getattr(books, to) + seconds}
    )
