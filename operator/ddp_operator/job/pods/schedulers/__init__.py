"""Those who admit or place the pods of a job together, one file each.

Each is pure: what a pod has to say to them, and the object, if any, that tells them of the gang
before it has pods.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.schedulers.kueue import kueue
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import Manifest

__all__ = ["Scheduler", "scheduled", "schedulers"]


class Scheduler(NamedTuple):
    """One of them."""

    member: Callable[[DDPJob, Identity, Manifest], dict[str, Any]]
    """From a pod to a pod that it takes for one of its job's."""


_KUEUE = Scheduler(kueue)


def schedulers(job: DDPJob) -> Iterator[Scheduler]:
    """Return those that a job asks for."""
    asked = job.spec.scheduling
    if asked and asked.queue_name:
        yield _KUEUE


def scheduled(job: DDPJob, identity: Identity, pod: Manifest) -> dict[str, Any]:
    """Return the pod as the schedulers of its job want it."""
    made = dict(pod)
    for scheduler in schedulers(job):
        made = scheduler.member(job, identity, made)
    return made
