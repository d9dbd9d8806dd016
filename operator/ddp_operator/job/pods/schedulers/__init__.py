"""Schedulers and queues that admit or place a job's pods together, one file each.

Each is pure: it marks a pod, and may need an object that describes the gang before its pods.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import node_ranks
from ddp_operator.job.pods.schedulers.affinity import apart_from_others, near_each_other
from ddp_operator.job.pods.schedulers.coscheduling import coscheduled, coscheduling_group
from ddp_operator.job.pods.schedulers.kueue import (
    group_of,
    group_size,
    is_in_group,
    kueue,
    kueue_group,
    provides_nodes,
    single_groups,
)
from ddp_operator.job.pods.schedulers.native import native, native_group
from ddp_operator.job.pods.schedulers.volcano import volcanic, volcano_group
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

__all__ = [
    "Scheduler",
    "group_of",
    "group_size",
    "is_in_group",
    "kueue_group",
    "provides_nodes",
    "scheduled",
    "schedulers",
    "single_groups",
]


class Scheduler(NamedTuple):
    """One way to admit or place pods together."""

    member: Callable[[DDPJob, Identity, Manifest], dict[str, Any]]
    """Return the pod, marked as one of its job's."""
    group: Callable[[DDPJob], dict[str, Any]] | None = None
    """The object that must exist before the pods. Its metadata holds at most a name of its own."""
    needs: str = ""
    """The field that asks for the group and what that requires, for the message when the server
    refuses it."""


_KUEUE: Final = Scheduler(kueue)
_NEAR: Final = Scheduler(near_each_other)
_GANG_NEEDS: Final = (
    "spec.scheduling.gang: {} needs {}, and an operator that may create them "
    "(manifests/components/gangs); install or enable what is missing, or remove gang"
)
_NATIVE_GROUPS: Final = (
    "the PodGroups of Kubernetes 1.37 or later, served where the feature gate GenericWorkload is on"
)
_GANGS: Final = {
    gang: Scheduler(member, group, _GANG_NEEDS.format(gang, groups))
    for gang, member, group, groups in (
        ("coscheduling", coscheduled, coscheduling_group, "the PodGroups of scheduler-plugins"),
        ("native", native, native_group, _NATIVE_GROUPS),
        ("volcano", volcanic, volcano_group, "Volcano's PodGroups"),
    )
}


def schedulers(job: DDPJob) -> Iterator[Scheduler]:
    """Yield the schedulers that a job asks for."""
    asked = job.spec.scheduling
    if asked is None:
        return
    if asked.kueue_queue:
        yield _KUEUE
    elif asked.topology:
        yield _NEAR  # Kueue itself finds a place with room for all pods
    if asked.gang != "none":
        yield _GANGS[asked.gang]


def scheduled(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod with the marks of its job's schedulers."""
    made = dict(pod)
    for scheduler in schedulers(job):
        made = scheduler.member(job, identity, made)
    return apart_from_others(job, made) if identity.slot not in node_ranks(job) else made
