"""The backend for a cluster."""

from collections.abc import Sequence
from typing import Final, Self

from ddp_operator.kube import ApiClient, Credentials
from ddp_operator.ports import Key, Manifest

from ddp_client.remote import own_remedies as remedies
from ddp_client.remote import queues
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.code.volume import store_code
from ddp_client.remote.evidence import gather
from ddp_client.remote.submission import submit
from ddp_client.report import Facts
from ddp_client.report.history import History
from ddp_client.submit import CodeFolder
from ddp_client.views.job.queueing import QueueState
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.own_remedies import OwnRemedies

_TIMEOUT_SECONDS: Final = 15.0


class KubernetesBackend(Cluster):
    """Implements `Backend` with an API server."""

    def __init__(self, credentials: Credentials, namespace: str) -> None:
        super().__init__(ApiClient(credentials, timeout_seconds=_TIMEOUT_SECONDS))
        self._namespace = namespace

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__(None, None, None)

    @property
    def namespace(self) -> str:
        """See `Backend`."""
        return self._namespace

    async def store_code(self, namespace: str, job: Manifest, code: CodeFolder) -> None:
        """See `Backend`."""
        await store_code(self, namespace, job, code)

    async def create(self, job: Manifest, config_maps: Sequence[Manifest]) -> Manifest:
        """See `Backend`."""
        return await submit(self, job["metadata"]["namespace"], job, config_maps)

    async def queue_state(self, job: JobSnapshot) -> QueueState:
        """See `Backend`."""
        return await queues.queue_state(self, job)

    async def own_remedies(self, namespace: str) -> OwnRemedies:
        """See `Backend`."""
        return await remedies.own_remedies(self, namespace)

    async def facts(self, key: Key, history: History | None) -> Facts:
        """See `Backend`."""
        return await gather(self, key, history=history)
