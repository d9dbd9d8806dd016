"""Deletes the pods of a plan: many by one request, and several requests at a time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.job_cache import Entry
from ddp_operator.job.planning.deletions import PodGroup, groups
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Cluster, Key

_AT_ONCE: Final = 16
"""Requests of one job at a time. Replacements need not wait until all old pods are gone."""


class Deletion:
    """Deletes the pods that a plan names, as `cluster` shows them when this is made."""

    def __init__(self, cluster: Cluster[PodState], entry: Entry, planned: Plan) -> None:
        job = entry.outline
        pods = cluster.pods_of(job.key) if planned.delete and isinstance(job, DDPJob) else ()
        grouped = groups(entry.uid, pods, planned)
        of_groups = {pod for group in grouped for pod in group.pods}
        self._cluster = cluster
        self._graces = planned.grace_seconds
        self._uids = {pod: cluster.uid_of(pod) for pod in planned.delete}
        single = (pod for pod in planned.delete if pod not in of_groups)
        self._requests: list[PodGroup | Key] = [*grouped, *single]

    async def run(self, overtaken: Callable[[], bool]) -> list[Exception]:
        """Make all requests until the plan is `overtaken`. Return the errors."""
        slots = asyncio.Semaphore(_AT_ONCE)
        errors: list[Exception] = []

        async def delete(doomed: PodGroup | Key) -> None:
            rest: Sequence[Key] = ()
            async with slots:
                if overtaken():
                    return
                try:
                    rest = await self._delete(doomed)
                except Exception as error:
                    errors.append(error)
            await asyncio.gather(*map(delete, rest))

        await asyncio.gather(*map(delete, self._requests))
        return errors

    async def _delete(self, doomed: PodGroup | Key) -> Sequence[Key]:
        """Make one request. Return the pods of the group that it has not deleted."""
        if isinstance(doomed, PodGroup):
            return await self._cluster.delete_pods(
                {pod: self._uids[pod] for pod in doomed.pods},
                labels=doomed.labels,
                grace_seconds=doomed.grace_seconds,
            )
        await self._cluster.delete_pod(
            doomed, grace_seconds=self._graces.get(doomed), uid=self._uids[doomed]
        )
        return ()
