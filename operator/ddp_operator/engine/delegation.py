"""What Kueue needs: of pods in its queues, and of jobs that MultiKueue runs in another cluster."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.engine.job_cache import Entry
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.places.queue import Upkeep, upkeep
from ddp_operator.job.planning.rejection import stored_status
from ddp_operator.job.pods import multikueue
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import (
    Cluster,
    ForbiddenError,
    Key,
    Manifest,
    NotFoundError,
    NotServedError,
)


async def tend_queue(
    cluster: Cluster[PodState],
    key: Key,
    entry: Entry | None,
    pods: Sequence[PodState],
    now: datetime,
    *,
    tend: Callable[[Upkeep], Awaitable[None]],
) -> None:
    """Do what pods in a queue need, also those of jobs that are gone; `tend` does it for some."""
    uid = entry.uid if entry else None
    job = entry.job if entry else None
    # Without a valid spec, only the pods of a job that is over are known to be over.
    if entry and (isinstance(job, DDPJob) or stored_status(entry.manifest).finished):
        own = [pod for pod in pods if pod.owner_uid == uid]
        await tend(upkeep(job if isinstance(job, DDPJob) else None, own, now))
    others = [pod for pod in pods if pod.owner_uid != uid]
    if upkeep(None, others, now).end:
        # The watch may not have reported their job yet.
        owner = await uid_of_job(cluster, key)
        others = [pod for pod in others if pod.owner_uid != owner]
    await tend(upkeep(None, others, now))


async def uid_of_job(cluster: Cluster[PodState], key: Key) -> str | None:
    """Return the UID of a job as the API server knows it; None if there is none."""
    try:
        stored = await cluster.patch_status(key, {}, resource_version=None)
    except NotFoundError:
        return None
    return str(stored["metadata"]["uid"])


async def keep_workload(cluster: Cluster[PodState], job: DDPJob) -> Manifest | None:
    """Do for Kueue what it expects of a job's controller in the first cluster: create the job's
    Workload if it needs one, write what has changed, and give its quota back when Kueue evicts it.
    Return the condition that the Workload is finished, if it is.

    Raises:
        ClusterError: a request failed. The message names the field that asks for the Workload.
    """
    if not multikueue.needs_workload(job):
        return None
    try:
        stored = await _read(cluster, multikueue.reference(job))
        if stored is None or multikueue.must_be_replaced(job, stored):
            chosen = multikueue.priority_class(job)
            value = (await cluster.read(chosen))["value"] if chosen else None
            if stored is not None:
                await cluster.delete(stored)
            await cluster.apply(multikueue.workload(job, value, stored))
            return None
        if changed := multikueue.updated(job, stored):
            stored = await cluster.update(changed)
        if status := multikueue.without_admission(stored):
            await cluster.patch_status_of(stored, status)
        return multikueue.finished(stored)
    except (NotFoundError, NotServedError, ForbiddenError) as error:
        raise error.because(multikueue.NEEDS) from None


async def begin_copy(cluster: Cluster[PodState], job: DDPJob) -> Plan | None:
    """Decide that a job which MultiKueue has just copied to this cluster keeps its failures."""
    named = multikueue.copied_workload(job)
    if named is None or job.status != DDPJobStatus():
        return None
    try:
        stored = await _read(cluster, named)
    except (NotServedError, ForbiddenError):
        return None  # `check_copy` says so before pods are created
    status = multikueue.first_status(job, stored) if stored else None
    return Plan(status, decided=True) if status else None


async def check_copy(cluster: Cluster[PodState], job: DDPJob) -> None:
    """Check that the Workload whose group new pods of a job would enter is the job's own.

    Raises:
        ForbiddenError: it is not, or it does not exist, or the operator may not read it.
        ClusterError: the request failed.
    """
    named = multikueue.copied_workload(job)
    if named is None:
        return
    try:
        stored = await _read(cluster, named)
    except (NotServedError, ForbiddenError) as error:
        message = f"{error.message}: {multikueue.CHECK_NEEDS}"
        raise ForbiddenError(message, status=error.status) from None
    if stored is None or not multikueue.is_copy_for(job, stored):
        raise ForbiddenError(multikueue.not_a_copy(job))


async def _read(cluster: Cluster[PodState], named: Manifest) -> Manifest | None:
    try:
        return await cluster.read(named)
    except NotFoundError:
        return None
