"""Queues and schedulers that admit or place a job's pods together. Each marks the pods for it."""

from typing import Any, Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.api.spec.scheduling import Topology
from ddp_operator.job.membership.world import node_ranks
from ddp_operator.job.pods.schedulers.affinity import apart_from_others, near_each_other
from ddp_operator.job.pods.schedulers.gangs import gang_of
from ddp_operator.job.pods.schedulers.kueue import grouped, in_queue
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

__all__ = ["in_queue", "scheduled"]

_NVLINK_DOMAIN: Final = Topology(level="sub-block", required=True)
"""On A4X and A4X Max, the nodes of a sub-block share an NVLink domain (Google's pages on their
node pools: at most 18 nodes, of one sub-block, form the topology 1x72)."""


def scheduled(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod with the marks of its job's group and scheduler."""
    made = dict(pod)
    if job.spec.kueue_queue:
        made = grouped(job, identity, made)
    elif job.spec.topology:  # Kueue itself finds a place with room for all pods
        made = near_each_other(job.name, identity, job.spec.topology, made)
    accelerator = spec_of(job.spec, identity.index).accelerator
    if accelerator and accelerator.domain_nodes:
        made = near_each_other(job.name, identity, _NVLINK_DOMAIN, made)
    if gang := gang_of(job):
        made = gang.member(job, made)
    return apart_from_others(job.name, made) if identity.slot not in node_ranks(job) else made
