"""How often a job may restart, and how soon.

Charged restarts count against `spec.restart.maxRestarts`. Node failures are free at first, but
limited too: a job that breaks every node is itself broken. Disruptions have no limit.
"""

from datetime import timedelta
from itertools import takewhile
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status import DDPJobStatus, Failure

MIN_NODE_FAILURES: Final = 3
"""Free node failures without progress, even if `maxRestarts` is less: one broken GPU must not end a
job that allows its own code no failure."""

_MAX_DOUBLINGS: Final = 20
"""More than `backoff.maxSeconds` ever needs."""


def after_progress(status: DDPJobStatus) -> DDPJobStatus:
    """Return the status with the counts reset if a later step was checkpointed since.

    Counts restart at 0. After checkpoints were lost, they restart at the number of losses: to train
    the same steps once more is progress, to lose them repeatedly is not.
    """
    notes, saved = status.bookkeeping, status.saved_step
    if saved is None or saved == notes.checkpoint_step_at_restart:
        return status
    if saved < notes.checkpoint_step_at_restart:
        return _behind(status, saved)
    least = notes.lost_checkpoints or 0
    return status.noting(
        restarts_without_progress=min(notes.restarts_without_progress, least),
        node_failures_without_progress=min(notes.node_failures_without_progress, least),
        checkpoint_step_at_restart=saved,
    )


def after_resuming(status: DDPJobStatus, step: int | None) -> DDPJobStatus:
    """Return the status measured from the step at which a new group resumed; None: it did not."""
    notes = status.bookkeeping
    if step is None:
        return status
    if step < notes.checkpoint_step_at_restart:
        return _behind(status, step)
    if notes.farthest_lost_step is not None and step > notes.farthest_lost_step:
        return status.noting(lost_checkpoints=None, farthest_lost_step=None)
    return status


def _behind(status: DDPJobStatus, step: int) -> DDPJobStatus:
    """Return the status of a job that is back at `step`, behind its last checkpoint."""
    notes = status.bookkeeping
    return status.noting(
        checkpoint_step_at_restart=step,
        lost_checkpoints=(notes.lost_checkpoints or 0) + 1,
        farthest_lost_step=max(notes.farthest_lost_step or 0, notes.checkpoint_step_at_restart),
    )


def is_charged(job: DDPJob, status: DDPJobStatus, class_: FailureClass) -> bool:
    """Return whether a failure of this class is charged if no rule decides."""
    if class_ == "Infrastructure":
        forgiven = max(job.spec.restart.max_restarts, MIN_NODE_FAILURES)
        return status.bookkeeping.node_failures_without_progress >= forgiven
    return class_ == "Application"


def used(job: DDPJob, status: DDPJobStatus) -> int:
    """Return the charged restarts that count against `maxRestarts` now."""
    refills = job.spec.restart.reset_after_progress
    return status.bookkeeping.restarts_without_progress if refills else status.restarts


def is_spent(job: DDPJob, status: DDPJobStatus) -> bool:
    """Return whether the next charged failure ends the job."""
    return used(job, status) >= job.spec.restart.max_restarts


def count(status: DDPJobStatus, failure: Failure) -> DDPJobStatus:
    """Count the restart for a failure."""
    notes = status.bookkeeping
    if failure.charged:
        status = status.updated(restarts=status.restarts + 1)
        status = status.noting(restarts_without_progress=notes.restarts_without_progress + 1)
    else:
        status = status.updated(disruptions=status.disruptions + 1)
    return count_for_node(status, failure)


def count_for_node(status: DDPJobStatus, failure: Failure) -> DDPJobStatus:
    """Count a failure of class Infrastructure."""
    if failure.class_ != "Infrastructure":
        return status
    failures = status.bookkeeping.node_failures_without_progress + 1
    return status.noting(node_failures_without_progress=failures)


def refund(status: DDPJobStatus) -> DDPJobStatus:
    """Take back the charge of a restart, which becomes a disruption."""
    without = max(status.bookkeeping.restarts_without_progress - 1, 0)
    status = status.updated(restarts=status.restarts - 1, disruptions=status.disruptions + 1)
    return status.noting(restarts_without_progress=without)


def pause(job: DDPJob, status: DDPJobStatus, failure: Failure) -> timedelta:
    """Return the wait before the restart counted last: none at first, then it doubles."""
    backoff = job.spec.restart.backoff
    if failure.class_ == "Disruption" and not failure.charged:
        return timedelta()
    in_a_row = max(
        status.bookkeeping.restarts_without_progress,
        status.bookkeeping.node_failures_without_progress,
        _forgiven_in_a_row(status),
    )
    if in_a_row < 2:
        return timedelta()
    seconds = backoff.initial_seconds * 2 ** min(in_a_row - 2, _MAX_DOUBLINGS)
    return timedelta(seconds=min(seconds, backoff.max_seconds))


def _forgiven_in_a_row(status: DDPJobStatus) -> int:
    """Return how many of the latest failures since the last checkpoint were the training's but
    free: a rule that charges nothing must not cause restarts in a tight loop.
    """
    saved = status.saved_at
    latest = takewhile(
        lambda failure: not failure.charged and failure.class_ != "Disruption",
        (failure for failure in reversed(status.failures) if not failure.continued),
    )
    return sum(saved is None or failure.time > saved for failure in latest)
