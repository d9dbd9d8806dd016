"""Creates the Secrets that pods have their tokens from: one for each namespace with jobs."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.access import Access, lacks_token
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Cluster, ForbiddenError, InvalidError, TokenSource

_RECREATION_SECONDS: Final = 5.0
"""All pods of a job may report at once that it is missing."""


class TokenSecrets:
    """Creates each namespace's Secret once in this process's life, and when it is found missing.

    The operator may create Secrets and read none. So a Secret that exists is taken as right: what
    is in it follows from its name.
    """

    def __init__(self, cluster: Cluster[PodState], access: Access) -> None:
        self._cluster = cluster
        self._access = access
        self._created_at: dict[str, float] = {}
        """By namespace, on the event loop's clock."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def create(self, job: DDPJob, pods: Iterable[PodState]) -> None:
        """Create the Secret that a job's pods need, unless it is there already.

        Raises:
            ClusterError: the API server refuses it, or does not answer.
        """
        # A full quota refuses the creation of an existing Secret, too, after a restart of the
        # operator; that pods have started with it says that it exists.
        if any(_has_used_secret(pod) for pod in pods if pod.owner_uid == job.uid):
            return
        async with self._locks[job.namespace]:  # a namespace's jobs need it at the same moment
            if job.namespace not in self._created_at:
                await self._create(job.namespace)

    async def restore(self, namespace: str, pods: Iterable[PodState]) -> None:
        """Create the Secret of a namespace again, where a pod of it waits for it."""
        name = self._access.secret_name(namespace)
        if not any(lacks_token(pod, name) for pod in pods):
            return
        async with self._locks[namespace]:
            created_at = self._created_at.get(namespace)
            now = asyncio.get_running_loop().time()
            if created_at is None or now - created_at >= _RECREATION_SECONDS:
                await self._create(namespace)

    async def _create(self, namespace: str) -> None:
        try:
            await self._cluster.create_secret(self._access.secret_manifest(namespace))
        except (ForbiddenError, InvalidError) as error:
            message = f"{error.message}: pods have DDP_TOKEN from this Secret"
            raise type(error)(message, status=error.status) from None
        self._created_at[namespace] = asyncio.get_running_loop().time()


def _has_used_secret(pod: PodState) -> bool:
    has_begun = pod.ready or pod.started is not None or pod.exit is not None
    return has_begun and pod.token_source is TokenSource.SECRET
