"""Workloads of jobs that MultiKueue runs in another cluster."""

from ddp_operator.api.job import DDPJob
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


class Delegation:
    """Does for Kueue what it expects of a job's controller in the first cluster."""

    def __init__(self, cluster: Cluster[PodState]) -> None:
        self._cluster = cluster
        self._applied: dict[Key, tuple[str, int]] = {}
        """UID and generation of each job whose Workload is up to date."""

    def forget(self, key: Key) -> None:
        """Forget a job that is gone."""
        self._applied.pop(key, None)

    async def keep_workload(self, job: DDPJob) -> Manifest | None:
        """Create or update the job's Workload, if it needs one, and give its quota back when Kueue
        evicts it. Return the condition that the Workload is finished, if it is.

        Raises:
            ClusterError: a request failed. The message names the field that asks for the Workload.
        """
        if not multikueue.needs_workload(job):
            return None
        state, named = (job.uid, job.generation), multikueue.reference(job)
        try:
            stored = await self._read(named)
            if stored is not None and multikueue.was_withdrawn(stored):
                await self._cluster.delete(stored)
                stored = None
            if stored is None or self._applied.get(job.key) != state:
                chosen = multikueue.priority_class(job)
                value = (await self._cluster.read(chosen))["value"] if chosen else None
                await self._cluster.apply(multikueue.workload(job, value))
                self._applied[job.key] = state
                stored = await self._cluster.read(named)
            if status := multikueue.without_admission(stored):
                await self._cluster.patch_status_of(stored, status)
            return multikueue.finished(stored)
        except (NotFoundError, NotServedError, ForbiddenError) as error:
            self.forget(job.key)
            message = f"{error.message}: {multikueue.NEEDS}"
            raise type(error)(message, status=error.status) from None

    async def _read(self, named: Manifest) -> Manifest | None:
        try:
            return await self._cluster.read(named)
        except NotFoundError:
            return None
