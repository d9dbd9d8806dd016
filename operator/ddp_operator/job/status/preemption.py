"""What a preemption would cost a job, as a boost of its priority in a queue of Kueue.

Kueue adds the boost to a Workload's priority (keps/7990-preemption-cost of
https://github.com/kubernetes-sigs/kueue, 0.17) when it orders its queue and when it chooses what to
preempt. A job that waits has a boost of 0, so boosts never change the order of a queue. They are
never negative, so no running job ranks below a waiting one of its priority class.
"""

from datetime import datetime, timedelta
from itertools import count, takewhile
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import gpu_limit
from ddp_operator.api.spec.overrides import kinds
from ddp_operator.job.membership.world import members, scope_of
from ddp_operator.job.pods.schedulers.kueue import kueue_group, single_groups

_FIRST_STEP: Final = 15 * 60.0
"""GPU-seconds of unsaved work for a boost of 1."""
_FACTOR: Final = 4
"""Each further step takes so many times the work. Smaller steps need more writes and save no more
work."""

EVICTED: Final = "WorkloadEvicted"
"""How the reasons of failures begin that are evictions by Kueue."""
_RECENT: Final = timedelta(hours=24)


def boosts_of(job: DDPJob, now: datetime, *, most: int) -> dict[str, int]:
    """Return the priority boosts of a job's Workloads, by name.

    The pods beyond `elastic.minReplicas` have Workloads of their own. Where processes restart, the
    loss of such a pod costs as much as that of all. Where they only form a new group, it costs
    nothing, and the Workload has no boost.
    """
    restarting = single_groups(job) if scope_of(job) == "InPlace" else ()
    return dict.fromkeys((kueue_group(job), *restarting), boost_of(job, now, most=most))


def boost_of(job: DDPJob, now: datetime, *, most: int) -> int:
    """Return the priority boost for the loss of a job's unsaved work, from 0 to `most`.

    It is 0 unless the job runs: while it restarts, its unsaved work is already lost.
    """
    running_since = job.status.running_since
    if job.status.phase != "Running" or running_since is None:
        return 0
    saved = job.status.checkpoint.time if job.status.checkpoint else None
    since = max(saved or running_since, running_since)
    unsaved = max((now - since).total_seconds(), 0) * _gpus(job)
    recent = [
        failure
        for failure in job.status.failures
        if failure.reason.startswith(EVICTED) and now - failure.time < _RECENT
    ]
    return priority_boost(unsaved, evictions=len(recent), most=most)


def priority_boost(gpu_seconds: float, *, evictions: int, most: int) -> int:
    """Return the boost for so many GPU-seconds of unsaved work, from 0 to `most`.

    Each recent eviction adds one step, so that the same job is not preempted again and again.
    """
    reached = takewhile(
        lambda step: step < most and gpu_seconds >= _FIRST_STEP * _FACTOR**step, count()
    )
    return min(sum(1 for _ in reached) + evictions, most)


def _gpus(job: DDPJob) -> float:
    """Return the GPUs of a job's group. A pod without GPUs counts as one."""
    pods = ((spec, sum(map(len, indexes))) for spec, indexes in kinds(job.spec))
    largest = sum(max(gpu_limit(spec), 1) * number for spec, number in pods)
    return largest * len(members(job)) / job.spec.replicas
