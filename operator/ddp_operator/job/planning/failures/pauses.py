"""Pauses before pods leave their nodes, so that the group restarts without repeating a step.

A script that keeps snapshots in memory restarts in place when a pod takes another one's place. So
rank 0 first pauses after its next snapshot. Once all pods have that snapshot, the restart costs no
step. Node rank 0's launcher carries the pause out, within its own deadlines, and reports it.
"""

from ddp_protocol.world import LauncherStatus

from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import scope_of, world_of
from ddp_operator.job.pods.observed import Observed


def may_pause(job: DDPJob, pods: Observed) -> bool:
    """Return whether the ranks could resume from a snapshot that rank 0 pauses after."""
    leader = _leader(job, pods)
    said = leader.memory if leader else None
    if said is None or said.step is None or said.refusal:
        return False
    # A smaller group can use no sharded snapshots, and without copies those of a pod go with it.
    return said.replicated or (said.copies > 0 and job.spec.elastic is None)


def is_awaited(job: DDPJob, pods: Observed) -> bool:
    """Return whether a pause may still begin."""
    leader = _leader(job, pods)
    return leader is not None and leader.pause in ("", "Requested") and may_pause(job, pods)


def paused_step(job: DDPJob, pods: Observed) -> int | None:
    """Return the step after which rank 0 pauses, once all ranks can resume from it; else None."""
    leader = _leader(job, pods)
    if leader is None or leader.pause != "Paused" or leader.memory is None:
        return None
    return leader.memory.step


def ended_paused(job: DDPJob, pods: Observed) -> bool:
    """Return whether the previous generation ended while rank 0 paused, as far as is still known.
    Its ranks have nothing to save, and wait for each other in vain.
    """
    leader = pods.launchers.leader
    if leader is None or leader.pause != "Paused":
        return False
    return leader.generation + 1 == world_of(job).generation


def is_due(job: DDPJob, pods: Observed, *, wanted: bool) -> bool:
    """Return whether node rank 0's launcher must learn that a pause is wanted, or is not."""
    leader = _leader(job, pods)
    return leader is not None and bool(leader.pause) != wanted


def _leader(job: DDPJob, pods: Observed) -> LauncherStatus | None:
    """Return the status of node rank 0's launcher, if it can request pauses of this group."""
    leader = pods.launchers.leader
    if leader is None or leader.pause is None or scope_of(job) != "InPlace":
        return None
    return leader if leader.generation == world_of(job).generation else None
