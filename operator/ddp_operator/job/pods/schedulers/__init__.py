"""Those who admit or place the pods of a job together, one file each.

Each is pure: what a pod has to say to them, and the object, if any, that tells them of the gang
before it has pods.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import node_ranks
from ddp_operator.job.pods.schedulers.affinity import apart_from_others, near_each_other
from ddp_operator.job.pods.schedulers.coscheduling import (
    COSCHEDULING_NEEDS,
    coscheduled,
    coscheduling_group,
)
from ddp_operator.job.pods.schedulers.kueue import kueue, kueue_group
from ddp_operator.job.pods.schedulers.native import NATIVE_NEEDS, native, native_group
from ddp_operator.job.pods.schedulers.volcano import VOLCANO_NEEDS, volcanic, volcano_group
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

__all__ = ["Scheduler", "kueue_group", "scheduled", "schedulers"]


class Scheduler(NamedTuple):
    """One of them."""

    member: Callable[[DDPJob, Identity, Manifest], dict[str, Any]]
    """From a pod to a pod that it takes for one of its job's."""
    group: Callable[[DDPJob], dict[str, Any]] | None = None
    """The object that has to be there before the pods; of its metadata at most a name of its own.
    """
    needs: str = ""
    """The field that asks for the group and what that takes, for where the server refuses it."""


_KUEUE: Final = Scheduler(kueue)
_NEAR: Final = Scheduler(near_each_other)
_GANGS: Final = {
    "coscheduling": Scheduler(coscheduled, coscheduling_group, COSCHEDULING_NEEDS),
    "native": Scheduler(native, native_group, NATIVE_NEEDS),
    "volcano": Scheduler(volcanic, volcano_group, VOLCANO_NEEDS),
}


def schedulers(job: DDPJob) -> Iterator[Scheduler]:
    """Return those that a job asks for."""
    asked = job.spec.scheduling
    if asked is None:
        return
    if asked.kueue_queue:
        yield _KUEUE
    elif asked.topology:
        yield _NEAR  # Kueue looks for a place by itself, where there is room for all
    if asked.gang != "none":
        yield _GANGS[asked.gang]


def scheduled(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod as the schedulers of its job want it."""
    made = dict(pod)
    for scheduler in schedulers(job):
        made = scheduler.member(job, identity, made)
    return apart_from_others(job, made) if identity.slot not in node_ranks(job) else made
