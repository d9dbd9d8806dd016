"""How a job spent its time, in whole seconds that add up exactly.

Each change of phase advances `accountedUntil` and books the time since to what the job was doing.
Ready pods do not train yet: a start ends with the first step, and a restart begins an *outage*,
whose time is lost until training continues.

What a trainer reports as `trainedSeconds` is exact, whatever the operator missed: the count is part
of the training's state, so it goes back with it. The first report of each group corrects what was
booked: training is that count, and the rest was lost.

Until then, and for trainers that do not count, the operator estimates. If all processes restart,
the seconds since the last checkpoint are lost if its time is known; otherwise steps are lost while
they are repeated. An outage begins with the failure, which a node reports a second later. It ends
at the trainer's own time of a step, but never before the failure or in the future, even if the
trainer's clock is wrong. Steps are counted as lost when the next group reports where it began.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.status import (
    DDPJobStatus,
    Failure,
    Goodput,
    Outage,
    Phase,
    Progress,
    Unreported,
)
from ddp_operator.job.status.progress import ReportedResumption, resumption

FirstSteps = Sequence[ReportedResumption]

_BOOKED_TO: Final[dict[Phase, str]] = {
    "Pending": "pending_seconds",
    "Starting": "starting_seconds",
    "Running": "training_seconds",
    "Restarting": "lost_seconds",
    "Suspended": "suspended_seconds",
}
_KIND_OF: Final = {name: name.removesuffix("_seconds") for name in _BOOKED_TO.values()}
KINDS: Final = tuple(_KIND_OF.values())
"""Ways to spend time."""

_UNREACHABLE: Final = frozenset({"DeletionByTaintManager", "LauncherUnreachable"})
"""Reasons of failures that are noticed a minute late, because a node does not answer."""

_BEFORE_TRAINING: Final = frozenset({"Pending", "Starting", "Restarting", "Suspended"})

_LEAVING: Final = timedelta(minutes=1)
"""How long a lost group may train on: deleted pods have a grace period."""


def spent(status: DDPJobStatus, *, created: datetime, now: datetime) -> Counter[str]:
    """Return the seconds of a job's age by use, with the open stretch as it looks now."""
    books = status.goodput
    names = _KIND_OF.items() if books else ()
    seconds = Counter[str]({kind: getattr(books, name) for name, kind in names})
    if status.phase in _BOOKED_TO:
        since = books.accounted_until if books else created
        kind = _KIND_OF[_booked_to(status.phase, books)]
        seconds[kind] += max(int((now - since).total_seconds()), 0)
    return seconds


def account(
    after: DDPJobStatus,
    *,
    before: DDPJobStatus,
    created: datetime,
    now: datetime,
    started: datetime | None = None,
    heard: datetime | None = None,
    first_steps: FirstSteps | None = None,
) -> DDPJobStatus:
    """Return the planned status with the time until now booked, if phase or attempt changed since
    `before` or a group's first step was reported, and with lost steps. `started`: when the last
    trainer started. `heard`: when a trainer last answered, with the last known step. `first_steps`:
    of groups, by its report; None: no report.
    """
    if before.finished:
        return after
    known = after.goodput or before.goodput or Goodput(accounted_until=created)
    if count := _count_of(after.progress):
        ended = _as_reported(known, count, before, after, now=now, first_steps=first_steps)
        books = ended or known
    else:
        times = [each.time for each in first_steps or ()]
        books = _first_step(known, before, after, started=started, now=now, times=times) or known
        ended = _ended(books, before, after, started=started, now=now)
        books = ended or books
    is_another = (after.phase, after.attempt) != (before.phase, before.attempt)
    # The pod that would have ended the outage was replaced.
    failed_again = books.outage is not None and after.incarnation != before.incarnation
    if is_another or failed_again:
        name = "training_seconds" if ended else _booked_to(before.phase, books)
        restarts = after.incarnation[:2] > before.incarnation[:2]
        after = _closed(before, after, books, name, now, heard, restarts=restarts)
    elif books is not known:
        after = after.updated(goodput=books)
    resumed, reached = resumption(before, after), before.progress
    if resumed is not None and reached is not None and resumed < reached.step:
        books = after.goodput or books
        steps = books.steps_lost + reached.step - resumed
        after = after.updated(goodput=books.updated(steps_lost=steps))
    return after


def with_downtimes(
    status: DDPJobStatus, downtimes: Sequence[tuple[Failure, datetime]], *, created: datetime
) -> DDPJobStatus:
    """Return the status with restarts booked that launchers led: failures, and when the processes
    could start again. After the last one an outage begins, if the trainer reports times of steps.
    """
    books = status.goodput or Goodput(accounted_until=created)
    for number, (failure, started) in enumerate(downtimes):
        failed = min(failure.time, started)
        if number == 0:
            name = _booked_to(status.phase, books)
            before, after = (status.updated(failures=each) for each in ((), (failure,)))
            closed = _closed(before, after, books, name, failed, None, restarts=True)
            books = closed.goodput or books
        else:
            books = _booked(books, "training_seconds", failed)
        if outage := books.outage:
            outage = outage.updated(since=max(failed, outage.since))
        books = _booked(books, "lost_seconds", started).updated(outage=outage)
    return status.updated(goodput=books)


def _booked_to(phase: Phase, books: Goodput | None) -> str:
    is_out = books is not None and books.outage is not None
    # A user may have stored a final phase that the conditions contradict.
    booked_to = _BOOKED_TO.get(phase, "pending_seconds")
    return "lost_seconds" if is_out and phase == "Running" else booked_to


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
    restarted = _restarted(before, since)
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
    return _trains(books, name, since=min(max(at, started or at), now))


def _has_reported(old: Progress, new: Progress, since: datetime, *, restarted: bool) -> bool:
    """Return whether a step of this start was reported before."""
    if old.last_step_time is not None and old.last_step_time > since:
        return True
    # An outage ended with the group's first step, before its pods were known to be ready.
    is_same = new.resumed_at is not None and old.resumed_at == new.resumed_at
    return restarted and is_same and old.step > (old.resumed_step or 0)


def _restarted(status: DDPJobStatus, since: datetime) -> bool:
    restarting = status.condition("Restarting")
    return restarting is not None and restarting.last_transition_time == since


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
    books = _trains(books, "lost_seconds", since=min(last, now))
    saved = after.checkpoint
    if saved and saved.time and saved.time <= outage.since and outage.until_step <= saved.step + 1:
        kept = saved.time - outage.lost_from  # it was not known yet
        books = _moved(books, kept, source="lost_seconds", to="training_seconds")
    return books.updated(outage=None)


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
        books = _moved(books, min(ends, default=start.until) - start.since, to="starting_seconds")
    if outage is not None:
        books = _trains(books, "lost_seconds", since=max(first, outage.since))
    elif _starts(books, before):
        books = _trains(books, "starting_seconds", since=first)
    else:
        books = _booked(books, _booked_to(before.phase, books), min(last, now))
    trained = count.trained + (books.accounted_until - last)
    wrong = timedelta(seconds=books.training_seconds) - trained
    books = _moved(books, wrong, to="lost_seconds")
    books = _moved(books, -wrong, source="lost_seconds", to="training_seconds")
    return books.updated(outage=None, unreported=(), counted_group=formed)


def _starts(books: Goodput, before: DDPJobStatus) -> bool:
    """Return whether this is the first report since the job was created, or was suspended."""
    since, is_first = before.running_since, books.counted_group is None
    is_open = since is not None and books.accounted_until <= since
    return is_first and is_open and not (since and _restarted(before, since))


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


def _moved(
    books: Goodput, time: timedelta, *, to: str, source: str = "training_seconds"
) -> Goodput:
    """Return the books with time booked to another use, as far as there is any."""
    seconds = min(max(round(time.total_seconds()), 0), getattr(books, source))
    return books.updated(
        **{source: getattr(books, source) - seconds, to: getattr(books, to) + seconds}
    )


def _trains(books: Goodput, name: str, *, since: datetime) -> Goodput:
    """Return the books with the time until then booked. If training began earlier than it was
    noticed, the time since then is open again: it may be lost with the next failure.
    """
    books = _booked(books, name, since)
    late = books.accounted_until - since.replace(microsecond=0)
    seconds = min(max(int(late.total_seconds()), 0), getattr(books, name))
    until = books.accounted_until - timedelta(seconds=seconds)
    seconds = getattr(books, name) - seconds
    return books.updated(accounted_until=until, unreported=(), **{name: seconds})


def _booked(books: Goodput, name: str, until: datetime) -> Goodput:
    # Whole seconds, as stored; a clock that was set back books nothing.
    until = max(until.replace(microsecond=0), books.accounted_until)
    seconds = int((until - books.accounted_until).total_seconds())
    return books.updated(accounted_until=until, **{name: getattr(books, name) + seconds})


def _closed(
    before: DDPJobStatus,
    after: DDPJobStatus,
    books: Goodput,
    name: str,
    now: datetime,
    heard: datetime | None,
    *,
    restarts: bool,
) -> DDPJobStatus:
    """Book the stretch that ends now."""
    booked = _booked(books, name, now)
    until = booked.accounted_until
    told, since = after.progress, before.running_since
    resumes_at = told.step if told else 0  # if the others keep their state
    # Pods that were deleted without a failure could save first.
    failed = after.failures != before.failures
    stopped = lost_from = min(after.failures[-1].time, until) if failed else until
    if failed:
        lost_from = _stood_still(after, stopped, heard) or stopped
    if failed and restarts and (saved := _last_saved(after)):
        step, time = saved
        lost_from = min(lost_from, time)
        if told and time < books.accounted_until:
            # Steps before that time count as lost while they are repeated.
            step = max(step, told.resumed_step or 0)
        resumes_at = min(resumes_at, step)
    lost_from = max(lost_from.replace(microsecond=0), books.accounted_until)
    new = Outage(since=stopped, until_step=resumes_at + 1, lost_from=lost_from)
    last, unreported = told.last_step_time if told else None, books.unreported
    unheard = since and books.accounted_until <= since < lost_from and not (last and since < last)
    if since and unheard and name == "training_seconds" and not _restarted(before, since):
        unreported = (*unreported, Unreported(since=since, until=lost_from))
    if name == "training_seconds":
        booked = _moved(booked, until - lost_from, to="lost_seconds")
    books = booked.updated(
        unreported=() if after.finished else unreported[-8:],
        outage=_outage(before, after, booked.outage, new),
        counted_group=None if after.phase == "Suspended" else books.counted_group,
    )
    return after.updated(goodput=books)


def _stood_still(
    failed: DDPJobStatus, stopped: datetime, heard: datetime | None
) -> datetime | None:
    """Return when the last step was completed, if training stopped then and not at the failure:
    in a hang, and where a peer on a lost node was waited for. None if it did not, or nobody knows.
    """
    last = failed.progress.last_step_time if failed.progress else None
    if last is None or not last < stopped:
        return None
    if failed.failures[-1].reason in _UNREACHABLE:
        return last
    # The answers cover more of this time than the silence after them.
    return last if heard is not None and heard - last >= stopped - heard else None


def _last_saved(failed: DDPJobStatus) -> tuple[int, datetime] | None:
    """Return step and time of the newest checkpoint that the latest failure has left, if known."""
    action = failed.failures[-1].action
    if action == "RestartPod":  # the others keep their state
        return None
    in_memory = failed.memory_checkpoint if action == "RestartInPlace" else None
    saved = [(each.step, each.time) for each in (failed.checkpoint, in_memory) if each]
    return max(((s, t) for s, t in saved if s is not None and t is not None), default=None)


def _outage(
    before: DDPJobStatus, after: DDPJobStatus, known: Outage | None, new: Outage
) -> Outage | None:
    """Return the outage after this step: none, the known one, or a new one at a restart."""
    if after.finished:
        return None
    if after.phase == "Suspended":  # the next start is no recovery, but may repeat steps
        told = after.progress
        return known if known and told and told.step + 1 < known.until_step else None
    if known is None:
        says_when = after.progress is not None and after.progress.last_step_time is not None
        # Launchers restart processes of a job that runs.
        trains_again = after.phase in ("Running", "Restarting")
        begins = says_when and before.phase == "Running" and trains_again
        return new if begins else None
    if before.incarnation == after.incarnation:
        return known
    return known.updated(since=new.since, lost_from=new.since)
