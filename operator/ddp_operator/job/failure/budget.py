"""How often a job may restart, and how soon.

Charged restarts count against `spec.restart.maxRestarts`. Node failures are free at first, but
limited too: a job that breaks every node is itself broken. Disruptions have no limit. The pause
before restarts without progress grows, whether they are charged or not.
"""

from datetime import timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec import FailureClass
from ddp_operator.api.status import DDPJobStatus, Failure

MIN_NODE_FAILURES: Final = 3
"""Free node failures without progress, even if `maxRestarts` is less: one broken GPU must not end a
job that allows its own code no failure."""

FIRST_PAUSE_SECONDS: Final = 10
LONGEST_PAUSE_SECONDS: Final = 600
"""Both values are those of Kubernetes' Job controller for failed pods."""
_MAX_DOUBLINGS: Final = 20
"""More than `backoff.maxSeconds` ever needs."""
_STABLE: Final = timedelta(minutes=10)
"""After all pods ran for so long, the pauses begin again. The kubelet resets the back-off of a
container after the same time."""


def after_progress(status: DDPJobStatus) -> DDPJobStatus:
    """Return the status with its counts reset if training has saved a later step than at any
    restart before, on a disk or in memory.

    Nothing else refills the budget. To train lost steps once more is no progress, so a job that
    loses its checkpoints each time ends, and so does one that runs for hours and saves nothing.
    """
    saved = status.saved_step
    if saved is None or saved <= status.bookkeeping.checkpoint_step_at_restart:
        return status
    return status.noting(
        restarts_without_progress=0,
        node_failures_without_progress=0,
        restarts_in_a_row=None,
        checkpoint_step_at_restart=saved,
    )


def is_charged(job: DDPJob, status: DDPJobStatus, class_: FailureClass) -> bool:
    """Return whether a failure of this class is charged if no rule decides."""
    if class_ == "Infrastructure":
        forgiven = max(job.spec.restart.max_restarts, MIN_NODE_FAILURES)
        return status.bookkeeping.node_failures_without_progress >= forgiven
    return class_ == "Application"


def is_spent(job: DDPJob, status: DDPJobStatus) -> bool:
    """Return whether the next charged failure ends the job."""
    return status.bookkeeping.restarts_without_progress >= job.spec.restart.max_restarts


def count(status: DDPJobStatus, failure: Failure) -> DDPJobStatus:
    """Count the restart for a failure."""
    notes, ran_since = status.bookkeeping, status.running_since
    if not failure.continued:
        is_stable = ran_since is not None and failure.time - ran_since >= _STABLE
        before = 0 if is_stable else notes.restarts_in_a_row or 0
        status = status.noting(restarts_in_a_row=before + 1)
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
    """Return the wait before the restart counted last: none for the first in a row, then it
    doubles.

    The training's own failures wait as `spec.restart.backoff` says. Others wait as Kubernetes' Job
    does. They wait one step longer if not all pods had run, so that nodes that refuse pods get
    time.
    """
    if failure.continued:
        return timedelta()  # the restart that it is part of has waited
    doublings = (status.bookkeeping.restarts_in_a_row or 0) - 2
    if failure.charged or failure.class_ == "Application":
        backoff = job.spec.restart.backoff
        seconds = pause_seconds(doublings, backoff.initial_seconds, backoff.max_seconds)
    else:
        seconds = pause_seconds(doublings + (not job.status.is_true("Running")))
    return timedelta(seconds=seconds)


def pause_seconds(
    doublings: int, first: int = FIRST_PAUSE_SECONDS, longest: int = LONGEST_PAUSE_SECONDS
) -> int:
    """Return the first pause doubled so many times, up to the longest; 0 if that is negative."""
    return min(first << min(doublings, _MAX_DOUBLINGS), longest) if doublings >= 0 else 0
