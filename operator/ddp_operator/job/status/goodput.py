"""What a job's age was spent on, in whole seconds that add up exactly.

Each change of phase moves `accountedUntil` on, and books the stretch that it closes to what the job
was doing until then. A restart of the gang takes training back to its last checkpoint, where one
was reported: the steps since then are lost, and so are their seconds of the stretch that it closes.
"""

from datetime import datetime
from typing import Final

from ddp_operator.api.status import DDPJobStatus, Goodput, Phase, Progress

_BOOKED_TO: Final[dict[Phase, str]] = {
    "Pending": "pending_seconds",
    "Starting": "starting_seconds",
    "Running": "training_seconds",
    "Restarting": "lost_seconds",
    "Suspended": "suspended_seconds",
}


def account(
    after: DDPJobStatus, *, before: DDPJobStatus, created: datetime, now: datetime
) -> DDPJobStatus:
    """Return a planned status with the time until now accounted for, if it is in another phase or
    attempt than the stored one, `before`; and with the steps that are seen to be lost.
    """
    if before.finished:
        return after
    if (after.phase, after.attempt) != (before.phase, before.attempt):
        after = _closed(before, after, created=created, now=now)
    elif lost := _steps(before.progress, after.progress):
        # A trainer that formed its group anew, or was replaced alone, tells where it went on.
        after = _lose(after, after.goodput or Goodput(accounted_until=created), steps=lost)
    return after


def _closed(
    before: DDPJobStatus, after: DDPJobStatus, *, created: datetime, now: datetime
) -> DDPJobStatus:
    """Book the stretch that ends now."""
    goodput = before.goodput or Goodput(accounted_until=created)
    # Whole seconds, as they are stored; a clock that was set back closes no stretch.
    until = max(now.replace(microsecond=0), goodput.accounted_until)
    seconds = int((until - goodput.accounted_until).total_seconds())
    name = _BOOKED_TO[before.phase]
    booked = goodput.model_copy(
        update={name: getattr(goodput, name) + seconds, "accounted_until": until}
    )
    checkpoint = after.checkpoint
    # Pods that were given up for another cause than a failure could save first.
    failed = after.attempt > before.attempt and after.failures != before.failures
    if checkpoint is None or not failed:
        return after.model_copy(update={"goodput": booked})
    unsaved = 0
    if before.phase == "Running" and checkpoint.time is not None:
        unsaved = min(max(int((until - checkpoint.time).total_seconds()), 0), seconds)
    steps = max(after.progress.step - checkpoint.step, 0) if after.progress else 0
    after = _lose(after, booked, steps=steps, seconds=unsaved)
    return after.model_copy(update={"progress": _back_at(checkpoint.step, after.progress, until)})


def _steps(before: Progress | None, after: Progress | None) -> int:
    return max(before.step - after.step, 0) if before and after else 0


def _lose(status: DDPJobStatus, goodput: Goodput, *, steps: int, seconds: int = 0) -> DDPJobStatus:
    goodput = goodput.model_copy(
        update={
            "training_seconds": goodput.training_seconds - seconds,
            "lost_seconds": goodput.lost_seconds + seconds,
            "steps_lost": goodput.steps_lost + steps,
        }
    )
    return status.model_copy(update={"goodput": goodput})


def _back_at(step: int, progress: Progress | None, now: datetime) -> Progress | None:
    """Where training is after a restart: steps that are lost must not be lost again."""
    if progress is None or progress.step <= step:
        return progress
    return Progress(step=step, total_steps=progress.total_steps, updated_at=now)
