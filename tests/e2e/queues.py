"""Jobs in a queue of Kueue, and what Kueue says of them."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tests.e2e.jobs import Job
from tests.e2e.kubectl import Kubectl, Manifest, wait_for
from tests.integration.queues.queue import CHIP, NAME, URGENT, admission, is_true, queue_objects

_WORKLOADS = "workloads.kueue.x-k8s.io"


def queued(manifest: Manifest, *, urgent: bool = False) -> Manifest:
    """Return a job in the queue. Its pods request one chip each and no other resource, since the
    quota has only chips.
    """
    job: dict[str, Any] = deepcopy(dict(manifest))
    job["spec"]["scheduling"] = {"queueName": NAME}
    template = job["spec"]["template"]
    if urgent:
        template["metadata"] = {"labels": {"kueue.x-k8s.io/priority-class": URGENT}}
    (container,) = template["spec"]["containers"]
    container["resources"] = {"limits": {CHIP: 1}}
    return job


@dataclass(frozen=True)
class Queue:
    """The queue `team` of a namespace, with a quota of its own."""

    kubectl: Kubectl

    @classmethod
    def made(cls, kubectl: Kubectl, chips: int) -> Queue:
        """Make it."""
        kubectl.apply(*(body for _, body in queue_objects(kubectl.namespace, chips)))
        return cls(kubectl)

    def workloads(self, job: Job) -> list[Any]:
        """Return the Workloads of a job: first that of the pods which it cannot train without."""
        own = re.compile(rf"{job.name}-[0-9a-f]{{6}}-\d+(-[-\d]+)?")
        found = {each["metadata"]["name"]: each for each in self.kubectl.items(_WORKLOADS)}
        return [found[name] for name in sorted(found, key=len) if own.fullmatch(name)]

    def place(self, job: Job) -> tuple[str, str]:
        """Wait until a job has its quota; return its Workload's UID, and since when it has it."""

        def look() -> tuple[str, str] | None:
            main, *_ = [*self.workloads(job), {}]
            return admission(main) if is_true(main, "QuotaReserved") else None

        return wait_for(look, what=f"quota for {job.name}", describe=job.status)

    def uids(self, job: Job) -> list[str]:
        """Return the UIDs of these Workloads."""
        return [each["metadata"]["uid"] for each in self.workloads(job)]

    def until_queued(self, job: Job) -> None:
        """Wait until a job waits for quota."""
        wait_for(
            lambda: job.status().reason == "Queued",
            what=f"{job.name} in its queue",
            describe=job.status,
        )
