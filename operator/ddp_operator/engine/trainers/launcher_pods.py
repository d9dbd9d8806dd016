"""Which pods of a job have launchers to ask, and when one of them may decide itself."""

from collections.abc import Sequence
from typing import Final

from ddp_protocol.world import LEAD_SECONDS

from ddp_operator.api.job import DDPJob
from ddp_operator.job.failure import budget
from ddp_operator.job.membership.rank_order import follows_topology
from ddp_operator.job.pods.observed import member_names, with_own_address
from ddp_operator.job.pods.state import PodState

_SOON_SECONDS: Final = 5
"""Longest time between two polls while the operator runs: it repeats one that failed after 2 s."""


def pollable(job: object) -> DDPJob | None:
    """Return the job if its launchers may have something to report, otherwise None."""
    if not isinstance(job, DDPJob):
        return None
    asked = job.spec.restart.scope in ("Auto", "InPlace") or follows_topology(job)
    if not asked and job.status.world is None:
        return None  # its scope has changed; its pods may still have generations
    return None if job.spec.suspend or job.deleting or job.status.finished else job


def leader(job: DDPJob, pods: Sequence[PodState]) -> PodState | None:
    """Return the pod of node rank 0 if its launcher may listen. An elastic job may continue without
    that pod: then return the first pod of the group with a launcher that may listen.
    """
    by_name = {pod.key.name: pod for pod in pods if pod.owner_uid == job.uid}
    asked = (by_name[name] for name in speakers(job) if name in by_name)
    return next((pod for pod in asked if may_listen(job, pod)), None)


def may_listen(job: DDPJob, pod: PodState) -> bool:
    """Return whether a pod has a launcher that may listen."""
    return bool(with_own_address(job, pod).address and pod.started) and not pod.exit


def speakers(job: DDPJob) -> Sequence[str]:
    """Return the names of pods with launchers that may speak for the job."""
    return member_names(job, None if job.spec.elastic else 1)


def seconds_to_lead(job: DDPJob) -> int:
    """Return after how many seconds without a poll node rank 0's launcher may decide about
    failures: soon, if it would do what the operator does. It knows no rules and no budget.
    """
    spent = budget.is_spent(job, budget.after_progress(job.status))
    return LEAD_SECONDS if job.spec.restart.rules or spent else _SOON_SECONDS
