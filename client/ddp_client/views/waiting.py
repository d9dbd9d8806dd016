"""The goals of `kubectl ddp wait`, and its exit codes."""

from typing import Final, Literal, get_args

from ddp_client.views.job.snapshot import JobSnapshot

Goal = Literal["succeeded", "failed", "finished", "running", "suspended", "deleted"]
GOALS: Final[tuple[Goal, ...]] = get_args(Goal)

REACHED: Final = 0
IMPOSSIBLE: Final = 3
"""Exit code when the goal can no longer be met: the job ended differently or was deleted."""
TIMED_OUT: Final = 124
"""Exit code after the timeout, the same as timeout(1)."""


def verdict(goal: Goal, job: JobSnapshot | None) -> int | None:
    """Return `REACHED`, `IMPOSSIBLE`, or None while the goal may still be met.

    `job` is None when the job is gone.
    """
    if job is None or goal == "deleted":
        if goal == "deleted":
            return REACHED if job is None else None
        return IMPOSSIBLE
    status = job.status
    phase = status.phase.lower()
    # A status older than the spec proves only that a job has ended.
    if status.finished:
        return REACHED if goal in (phase, "finished") else IMPOSSIBLE
    return REACHED if goal == phase and not job.unobserved else None
