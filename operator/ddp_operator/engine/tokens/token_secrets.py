"""Creates the Secrets with the pods' tokens, one for each namespace with jobs."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.pods.access import lacks_token
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Cluster, ForbiddenError, InvalidError, TokenSource

_RECREATION_SECONDS: Final = 5.0
"""All pods of a job may report at once that the Secret is missing."""


class TokenSecrets:
    """Creates each namespace's Secret once in the life of this process, and again if it is missing.

    The operator may create Secrets but not read them. So it trusts an existing Secret: its name
    determines its content.
    """

    def __init__(self, cluster: Cluster[PodState], access: Access) -> None:
        self._cluster = cluster
        self._access = access
        self._created_at: dict[str, float] = {}
        """By namespace, on the event loop's clock."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def create(self, job: DDPJob, pods: Iterable[PodState]) -> None:
        """Create the Secret that a job's pods need, unless it exists.

        Raises:
            ClusterError: the API server refuses it, or does not answer.
        """
        # After a restart of the operator, a full quota refuses even the creation of an existing
        # Secret. Pods that started with the Secret show that it exists.
        if any(_has_used_secret(pod) for pod in pods if pod.owner_uid == job.uid):
            return
        async with self._locks[job.namespace]:  # several jobs may need it at the same moment
            if job.namespace not in self._created_at:
                await self._create(job.namespace)

    async def restore(self, namespace: str, pods: Iterable[PodState]) -> None:
        """Create the Secret of a namespace again if one of these pods waits for it."""
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
            message = f"{error.message}: this Secret provides DDP_TOKEN to pods"
            raise type(error)(message, status=error.status) from None
        self._created_at[namespace] = asyncio.get_running_loop().time()


def _has_used_secret(pod: PodState) -> bool:
    has_begun = pod.ready or pod.started is not None or pod.exit is not None
    return has_begun and pod.token_source is TokenSource.SECRET
