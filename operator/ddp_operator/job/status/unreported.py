"""Corrects how a job spent its time, for groups that were lost before they reported a step.

The time since such a group's pods were ready counts as training in `goodput.unreported`, until the
next group reports when the lost one completed its first step.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from ddp_operator.api.status import DDPJobStatus, Goodput, Progress
from ddp_operator.job.status.progress import ReportedResumption


def settled(
    books: Goodput, after: DDPJobStatus, first_steps: Sequence[ReportedResumption] | None
) -> Goodput:
    """Return the books without unreported time, if a report shows when groups began to train."""
    told = after.progress
    if first_steps is None or told is None or not books.unreported:
        return books
    if told.resumed_at is None:  # nothing more will be known
        return books.updated(unreported=())
    if told.resumed_at < books.unreported[-1].until:
        return books  # a report of the lost group
    earlier = [each for each in first_steps if each.time < told.resumed_at]
    if not earlier and told.resumed_step:  # other groups trained, and it is unknown when
        return books.updated(unreported=())
    for stretch in books.unreported:
        inside = [each for each in earlier if stretch.since <= each.time <= stretch.until]
        began = inside[0].time if inside else stretch.until
        name = "lost_seconds" if stretch.restarted else "starting_seconds"
        books = _moved(books, name, began - stretch.since)
        if inside and (kept := _kept(after, told, inside[0])):
            books = _moved(books, "lost_seconds", stretch.until - max(kept, began))
    return books.updated(unreported=())


def _kept(after: DDPJobStatus, told: Progress, first: ReportedResumption) -> datetime | None:
    """Return until when steps since a group's `first` one were saved: a later group resumed there.
    Without the checkpoint's time, steps are taken to be as long as those of that group. None: all.
    """
    resumed, saved = told.resumed_step or 0, after.checkpoint
    if resumed < first.step:
        return first.time
    if saved and saved.time and saved.step == resumed:
        return saved.time
    if after.failures and after.failures[-1].action == "RestartPod":  # from memory
        return None
    made = timedelta()
    if told.resumed_at and told.last_step_time and told.step > resumed:
        made = max(told.last_step_time - told.resumed_at, made) / (told.step - resumed)
    return first.time + made * (resumed - first.step)


def _moved(books: Goodput, name: str, time: timedelta) -> Goodput:
    """Return the books with time of training booked to another use."""
    seconds = min(max(int(time.total_seconds()), 0), books.training_seconds)
    return books.updated(
        training_seconds=books.training_seconds - seconds,
        **{name: getattr(books, name) + seconds},
    )
