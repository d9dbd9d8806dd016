"""What a client needs of the place where jobs live: a cluster, or this machine."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from ddp_operator.client.logs import LogSource
from ddp_operator.job.pods.pod_security import PodSecurity
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key, Manifest
from ddp_operator.report import Facts
from ddp_operator.report.history import History


class Backend(LogSource, Protocol):
    """Jobs and their pods; every method may raise a `ddp_operator.ports.ClusterError`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @property
    def namespace(self) -> str:
        """Where jobs are that name none."""

    async def pod_security(self, namespace: str) -> PodSecurity | None:
        """Return what a namespace enforces, as far as is known."""

    async def create(self, job: Manifest, scripts: Manifest | None) -> Manifest:
        """Store a job, and the ConfigMap that it runs, which goes with it. Returns the job."""

    async def job(self, key: Key) -> Manifest:
        """Return a job as stored; `NoSuchJobError` where there is none."""

    def jobs(self, namespace: str | None) -> AsyncIterator[Manifest]:
        """Yield the jobs of one namespace, or of all."""

    def changes(self, key: Key) -> AsyncGenerator[Manifest | None, None]:
        """Yield a job as it is, and then whenever it may have changed; None: it is gone, which ends
        this.
        """

    async def pods(self, key: Key) -> list[PodState]:
        """Return its pods, those of before included."""

    async def facts(self, key: Key, history: History | None) -> Facts:
        """Return what a report is made from; `history`: the trainer's metrics, where they were had
        otherwise.
        """

    async def patch(self, key: Key, uid: str, patch: Mapping[str, Any]) -> None:
        """Change a job, if it is still that one."""

    async def delete(self, key: Key, uid: str) -> None:
        """Delete a job and all it owns, if it is still that one."""
