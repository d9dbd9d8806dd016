"""What `wait` waits for."""

from typing import Final, Literal

from ddp_operator.views.job.snapshot import JobSnapshot

Goal = Literal["succeeded", "failed", "finished", "running", "suspended", "deleted"]
GOALS: Final[tuple[Goal, ...]] = (
    "succeeded",
    "failed",
    "finished",
    "running",
    "suspended",
    "deleted",
)

REACHED: Final = 0
IMPOSSIBLE: Final = 3
"""Exit code where the goal cannot be reached any more: the job has ended otherwise, or is gone."""
TIMED_OUT: Final = 124
"""Exit code when the time is over: that of timeout(1)."""


def verdict(goal: Goal, job: JobSnapshot | None) -> int | None:
    """`REACHED`, `IMPOSSIBLE`, or None while it may still come; no job: it is gone."""
    if job is None or goal == "deleted":
        if goal == "deleted":
            return REACHED if job is None else None
        return IMPOSSIBLE
    status = job.status
    phase = status.phase.lower()
    # Of a status that is older than the spec nothing but a job's end is certain.
    if status.finished:
        return REACHED if goal in (phase, "finished") else IMPOSSIBLE
    return REACHED if goal == phase and not job.unobserved else None
