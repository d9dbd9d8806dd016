"""The synchronous client: each call runs a method of the asynchronous client."""

import contextlib
import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.ports import Manifest

from ddp_client.sdk.client import AsyncClient, AsyncLocalClient
from ddp_client.sdk.job import AsyncJob
from ddp_client.sdk.logs import LogLine
from ddp_client.sdk.loop import Loop
from ddp_client.sdk.manifests import Options
from ddp_client.sdk.report import JobReport
from ddp_client.sdk.result import JobResult
from ddp_client.views.job.diagnosis import Diagnosis


class Job:
    """A job; each call reads its current state. See `AsyncJob`.

    >>> client = LocalClient()
    >>> script = "echo step 1/2; echo no such data >&2; exit 64"
    >>> job = client.run(command=["sh", "-c", script], name="lost")
    >>> try:
    ...     job.wait(timeout=60)
    ... except JobFailedError as error:
    ...     print(error.diagnosis.last_words)
    ['step 1/2', 'no such data']
    >>> job.why().remedies[0]
    'correct the command, its arguments or the image; a restart does not help'
    >>> for line in job.logs(tail=1):
    ...     print(line)
    0 | no such data
    >>> job.delete()
    >>> client.close()
    """

    def __init__(self, client: "Client", job: AsyncJob) -> None:
        self._client = client  # keeps the client open while the job is in use
        self._loop = client._loop
        self._job = job

    @property
    def name(self) -> str:
        """The job's name."""
        return self._job.name

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return self._job.namespace

    def __repr__(self) -> str:
        return repr(self._job).replace("AsyncJob", "Job")

    @property
    def status(self) -> DDPJobStatus:
        """The job's current status, read on each access."""
        return self._loop.run(self._job.status())

    def read(self) -> DDPJob:
        """See `AsyncJob.read`."""
        return self._loop.run(self._job.read())

    def manifest(self) -> Manifest:
        """See `AsyncJob.manifest`."""
        return self._loop.run(self._job.manifest())

    def watch(self, *, timeout: float | None = None) -> Generator[DDPJobStatus, None, None]:
        """See `AsyncJob.watch`.

        >>> with LocalClient() as client:
        ...     job = client.run(command=["sleep", "600"], name="long")
        ...     for status in job.watch(timeout=60):
        ...         if status.phase == "Running":
        ...             job.stop()
        ...         elif status.phase == "Suspended":
        ...             break
        >>> status.phase
        'Suspended'
        """
        return self._loop.iterate(self._job.watch(timeout=timeout))

    def wait(
        self,
        *,
        timeout: float | None = None,
        on_progress: Callable[[DDPJobStatus], object] | None = None,
    ) -> DDPJobStatus:
        """See `AsyncJob.wait`; `on_progress` runs in this thread and may use the job."""
        status = DDPJobStatus()
        with contextlib.closing(self._loop.iterate(self._job.watch(timeout=timeout))) as states:
            for status in states:
                if on_progress is not None:
                    on_progress(status)
        return self._loop.run(self._job.verdict(status))

    def logs(
        self,
        *,
        follow: bool = False,
        ranks: Sequence[int] = (),
        tail: int | None = None,
        since_seconds: float | None = None,
    ) -> Generator[LogLine, None, None]:
        """See `AsyncJob.logs`."""
        lines = self._job.logs(follow=follow, ranks=ranks, tail=tail, since_seconds=since_seconds)
        return self._loop.iterate(lines)

    def why(self) -> Diagnosis:
        """See `AsyncJob.why`."""
        return self._loop.run(self._job.why())

    def result(self, *, metrics: str | Path | None = None) -> JobResult:
        """See `AsyncJob.result`.

        >>> with LocalClient() as client:
        ...     job = client.run(command=["sh", "-c", "exit 0"], name="quick")
        ...     status = job.wait(timeout=60)
        ...     job.result().phase, job.result().loss
        ('Succeeded', None)
        """
        return self._loop.run(self._job.result(metrics=metrics))

    def report(
        self,
        *,
        metrics: str | Path | None = None,
        prices: Mapping[str, float] | None = None,
        price_per_pod: float | None = None,
    ) -> JobReport:
        """See `AsyncJob.report`."""
        made = self._job.report(metrics=metrics, prices=prices, price_per_pod=price_per_pod)
        return self._loop.run(made)

    def stop(self) -> None:
        """See `AsyncJob.stop`."""
        self._loop.run(self._job.stop())

    def resume(self) -> None:
        """See `AsyncJob.resume`."""
        self._loop.run(self._job.resume())

    def restart(self) -> None:
        """See `AsyncJob.restart`."""
        self._loop.run(self._job.restart())

    def delete(self) -> None:
        """See `AsyncJob.delete`."""
        self._loop.run(self._job.delete())


class Client:
    """Runs and inspects jobs on a cluster.

    It also works in a notebook, which runs an event loop of its own. Close it with `close()` or use
    it as a context manager; otherwise it closes when the program ends. See `AsyncClient` for the
    arguments.

    >>> client = Client(namespace="research")
    >>> [job.name for job in client.jobs()]
    ['digits']
    >>> job = client.job("digits")
    >>> job.status.phase, job.status.progress.step
    ('Running', 500)
    >>> job.read().spec.replicas
    2
    >>> job.stop()
    >>> job.read().spec.suspend
    True
    >>> client.close()
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
    ) -> None:
        self._start(
            lambda: AsyncClient(namespace=namespace, context=context, kubeconfig=kubeconfig)
        )

    def _start(self, make: Callable[[], AsyncClient]) -> None:
        self._client = make()
        self._loop = Loop()
        try:
            self._loop.run(self._client.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        # No reference to `self`: an unused client is collected and closes.
        self._closing = weakref.finalize(self, _close, self._loop, self._client)

    def close(self) -> None:
        """Close the connections; a `LocalClient` also ends all processes."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        function: Callable[..., object] | None = None,
        *,
        command: Sequence[str] | None = None,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """See `AsyncClient.run`."""
        return self._job(
            self._client.run(function, command=command, arguments=arguments, **options)
        )

    def apply(self, manifest: Manifest) -> Job:
        """See `AsyncClient.apply`."""
        return self._job(self._client.apply(manifest))

    def job(self, name: str) -> Job:
        """See `AsyncClient.job`."""
        return self._job(self._client.job(name))

    def jobs(self, *, all_namespaces: bool = False) -> list[Job]:
        """See `AsyncClient.jobs`."""
        found = self._loop.run(self._client.jobs(all_namespaces=all_namespaces))
        return [Job(self, job) for job in found]

    def _job(self, asked: Coroutine[Any, Any, AsyncJob]) -> Job:
        return Job(self, self._loop.run(asked))


class LocalClient(Client):
    """A `Client` that runs jobs as processes of this machine. See `AsyncLocalClient`.

    >>> def greet(name: str) -> None:
    ...     import os
    ...
    ...     print(f"hello {name}, I am rank {os.environ['RANK']}")
    >>> with LocalClient() as client:
    ...     job = client.run(greet, arguments={"name": "Ada"}, replicas=2)
    ...     print(job.wait(timeout=60).phase)
    ...     print(sorted(str(line) for line in job.logs()))
    Succeeded
    ['0 | hello Ada, I am rank 0', '1 | hello Ada, I am rank 1']
    """

    def __init__(self, *, workdir: str | Path | None = None) -> None:
        local = AsyncLocalClient(workdir=workdir)
        self._local = local
        self._start(lambda: local)

    @property
    def workdir(self) -> Path:
        """The folder with logs and volumes."""
        return self._local.workdir


def _close(loop: Loop, client: AsyncClient) -> None:
    try:
        loop.run(client.__aexit__(None, None, None))
    finally:
        loop.close()
