"""Queues and schedulers that admit or place a job's pods together. Each marks the pods for it."""

from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import node_ranks
from ddp_operator.job.pods.schedulers.affinity import apart_from_others, near_each_other
from ddp_operator.job.pods.schedulers.gangs import gang_of
from ddp_operator.job.pods.schedulers.kueue import grouped, in_queue
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

__all__ = ["in_queue", "scheduled"]


def scheduled(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod with the marks of its job's group and scheduler."""
    made = dict(pod)
    if job.spec.kueue_queue:
        made = grouped(job, identity, made)
    elif job.spec.topology:  # Kueue itself finds a place with room for all pods
        made = near_each_other(job.name, identity, job.spec.topology, made)
    if gang := gang_of(job):
        made = gang.member(job, made)
    return apart_from_others(job.name, made) if identity.slot not in node_ranks(job) else made
