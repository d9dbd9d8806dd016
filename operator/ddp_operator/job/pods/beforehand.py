"""What a job needs before its pods, beside its Service and its NetworkPolicy."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.claims import CLAIMS_NEED, claim_template
from ddp_operator.job.pods.manifests import own_metadata
from ddp_operator.job.pods.schedulers import schedulers
from ddp_operator.ports import Manifest


@dataclass(frozen=True, slots=True)
class Beforehand:
    """An object of a kind that not every cluster has, nor lets the operator make."""

    manifest: Manifest
    needs: str
    """The field that asks for it and what that takes: for where the server refuses it."""


def beforehand(job: DDPJob) -> Iterator[Beforehand]:
    """Return what must exist before the job's pods; it is the job's own, and goes with it."""
    if template := claim_template(job):
        yield Beforehand(template, CLAIMS_NEED)
    for scheduler in schedulers(job):
        if scheduler.group:
            group = scheduler.group(job)
            metadata = {**own_metadata(job), **group.get("metadata", {})}
            yield Beforehand({**group, "metadata": metadata}, scheduler.needs)
