"""The interface of a backend."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, Self

from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key, Manifest

from ddp_client.pod_security import PodSecurity
from ddp_client.remote.logs import LogSource
from ddp_client.report import Facts
from ddp_client.report.history import History
from ddp_client.submit import CodeFolder
from ddp_client.views.job.queueing import QueueState
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.own_remedies import OwnRemedies


class Backend(LogSource, Protocol):
    """Jobs and their pods; every method may raise `ddp_operator.ports.ClusterError`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    @property
    def namespace(self) -> str:
        """The namespace of jobs that name none."""

    async def pod_security(self, namespace: str) -> PodSecurity | None:
        """Return the Pod Security that a namespace enforces; None if none or unknown."""

    async def nodes(self) -> list[Manifest] | None:
        """Return the nodes; None without the right to read them, or without a cluster."""

    async def store_code(self, namespace: str, job: Manifest, code: CodeFolder) -> None:
        """Store code in the volume that it has, before its job is created."""

    async def create(self, job: Manifest, config_maps: Sequence[Manifest]) -> Manifest:
        """Create a job and the ConfigMaps with its script or code, which are deleted with it.

        Returns the job as stored.
        """

    async def job(self, key: Key) -> Manifest:
        """Return a job as stored; raises `NoSuchJobError` if there is none."""

    def jobs(self, namespace: str | None) -> AsyncIterator[Manifest]:
        """Yield the jobs of one namespace, or of all."""

    def changes(self, key: Key) -> AsyncGenerator[Manifest | None, None]:
        """Yield a job now and after each possible change; None when it is gone, which ends this."""

    async def pods(self, key: Key) -> list[PodState]:
        """Return the job's pods, including old ones."""

    async def queue_state(self, job: JobSnapshot) -> QueueState:
        """Return why a job waits in its queue; empty if unknown."""

    async def own_remedies(self, namespace: str) -> OwnRemedies:
        """Return the team's remedies for errors of jobs of a namespace; none if unreadable."""

    async def facts(self, key: Key, history: History | None) -> Facts:
        """Return the facts for a report; `history`: the trainer's metrics, if already read."""

    async def patch(self, key: Key, uid: str, patch: Mapping[str, Any]) -> None:
        """Change a job if it still has this UID."""

    async def delete(self, key: Key, uid: str) -> None:
        """Delete a job and everything it owns if it still has this UID."""
