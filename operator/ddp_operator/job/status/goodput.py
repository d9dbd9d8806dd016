"""How a job spent its time, in whole seconds that add up exactly.

Each change of phase advances `accountedUntil` and books the time since to what the job was doing.
Ready pods do not train yet: a start ends with the first step, and a restart begins an *outage*,
whose time is lost until training continues.

What is booked at a failure is an estimate until the next report (`reported_time`). If all processes
restart, the seconds since the last checkpoint are lost if its time is known; otherwise steps are
lost while they are repeated. An outage begins with the failure, which a node reports a second
later. Steps are counted as lost when the next group reports where it began.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ddp_operator.api.status import (
    DDPJobStatus,
    Failure,
    Goodput,
    Outage,
    Unreported,
)
from ddp_operator.job.status.books import USES, is_restart, use_of, with_booked, with_moved
from ddp_operator.job.status.progress import resumption
from ddp_operator.job.status.reported_time import FirstSteps, with_reported_time

_KIND_OF: Final = {name: name.removesuffix("_seconds") for name in USES.values()}
KINDS: Final = tuple(_KIND_OF.values())
"""Ways to spend time."""

_UNREACHABLE: Final = frozenset({"DeletionByTaintManager", "LauncherUnreachable"})
"""Reasons of failures that are noticed a minute late, because a node does not answer."""


def spent(status: DDPJobStatus, *, created: datetime, now: datetime) -> Counter[str]:
    """Return the seconds of a job's age by use, with the open stretch as it looks now."""
    books = status.goodput
    names = _KIND_OF.items() if books else ()
    seconds = Counter[str]({kind: getattr(books, name) for name, kind in names})
    if status.phase in USES:
        since = books.accounted_until if books else created
        kind = _KIND_OF[use_of(status.phase, books)]
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
    books, trains = with_reported_time(
        known, before, after, now=now, started=started, first_steps=first_steps
    )
    is_another = (after.phase, after.attempt) != (before.phase, before.attempt)
    # The pod that would have ended the outage was replaced.
    failed_again = books.outage is not None and after.incarnation != before.incarnation
    if is_another or failed_again:
        name = "training_seconds" if trains else use_of(before.phase, books)
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
            name = use_of(status.phase, books)
            before, after = (status.updated(failures=each) for each in ((), (failure,)))
            closed = _closed(before, after, books, name, failed, None, restarts=True)
            books = closed.goodput or books
        else:
            books = with_booked(books, "training_seconds", failed)
        if outage := books.outage:
            outage = outage.updated(since=max(failed, outage.since))
        books = with_booked(books, "lost_seconds", started).updated(outage=outage)
    return status.updated(goodput=books)


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
    booked = with_booked(books, name, now)
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
    if since and unheard and name == "training_seconds" and not is_restart(before, since):
        unreported = (*unreported, Unreported(since=since, until=lost_from))
    if name == "training_seconds":
        booked = with_moved(booked, until - lost_from, to="lost_seconds")
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
