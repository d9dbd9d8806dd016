"""One job, wherever it is."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.client.cluster import NoSuchJobError
from ddp_operator.ports import Key, Manifest, NotFoundError
from ddp_operator.report.files import read_metrics
from ddp_operator.sdk import logs
from ddp_operator.sdk.backends.backend import Backend
from ddp_operator.sdk.errors import JobFailedError, JobGoneError, ManifestError, WaitTimeoutError
from ddp_operator.sdk.logs import LogLine
from ddp_operator.sdk.report import JobReport
from ddp_operator.views import changes
from ddp_operator.views.changes import Change
from ddp_operator.views.job.diagnosis import Diagnosis, diagnose
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import clean

_NOT_SEEN: Final = "not seen yet"


class AsyncJob:
    """A job by its name; what it says is asked for anew each time.

    It is always this very job: where another one has taken its name, it is gone.
    """

    def __init__(self, backend: Backend, key: Key, uid: str) -> None:
        self._backend = backend
        self.key = key
        self.uid = uid

    @property
    def name(self) -> str:
        """Its name."""
        return self.key.name

    @property
    def namespace(self) -> str:
        """Where it is."""
        return self.key.namespace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {clean(self.key)}>"

    async def manifest(self) -> Manifest:
        """Return the whole job as it is stored.

        Raises:
            JobGoneError: it is there no more.
        """
        return (await self._snapshot()).manifest

    async def read(self) -> DDPJob:
        """Return the job by this release's own models: `spec`, `status`, names and times.

        Raises:
            ManifestError: its spec is of another release; `manifest()` has it as it is.
        """
        job = await self._snapshot()
        if job.parsed is None:
            raise ManifestError(
                f"{clean(self.name)}: this release cannot read its spec: {clean(job.problem)}"
            )
        return job.parsed

    async def status(self) -> DDPJobStatus:
        """Return its state; of another release, as much of it as can be read."""
        return (await self._snapshot()).status

    async def watch(self, *, timeout: float | None = None) -> AsyncGenerator[DDPJobStatus, None]:
        """Yield its state, and then each new one, up to the last.

        Raises:
            WaitTimeoutError: it has not ended in so many seconds.
            JobGoneError: it was deleted.
        """
        end = None if timeout is None else asyncio.get_running_loop().time() + timeout
        latest: DDPJobStatus | None = None
        state = _NOT_SEEN
        async with contextlib.aclosing(self._backend.changes(self.key)) as found:
            while True:
                try:
                    async with asyncio.timeout_at(end):
                        manifest = await anext(found)
                except TimeoutError:
                    raise WaitTimeoutError(self.name, timeout or 0.0, state) from None
                job = JobSnapshot.read(manifest) if manifest is not None else None
                if job is None or job.uid != self.uid:
                    raise JobGoneError(self.name)
                if job.status != latest:
                    latest = job.status
                    state = f"{latest.phase} ({clean(latest.reason, 64) or 'no reason yet'})"
                    yield latest
                    if latest.finished:
                        return

    async def wait(
        self,
        *,
        timeout: float | None = None,
        on_progress: Callable[[DDPJobStatus], object] | None = None,
    ) -> DDPJobStatus:
        """Wait until it has succeeded, and return its last state; `on_progress` is called with each
        new one. Without a `timeout` (seconds) this takes as long as the job.

        Raises:
            JobFailedError: it has failed; says why, and what to do.
            WaitTimeoutError: the time is over.
            JobGoneError: it was deleted.
        """
        status = DDPJobStatus()
        async with contextlib.aclosing(self.watch(timeout=timeout)) as states:
            async for status in states:
                if on_progress is not None:
                    on_progress(status)
        return await self.verdict(status)

    async def verdict(self, status: DDPJobStatus) -> DDPJobStatus:
        """Return the state of a job that has succeeded.

        Raises:
            JobFailedError: it has not.
        """
        if status.phase != "Succeeded":
            raise JobFailedError(self.name, await self.why())
        return status

    async def logs(
        self,
        *,
        follow: bool = False,
        ranks: Sequence[int] = (),
        tail: int | None = None,
        since_seconds: float | None = None,
    ) -> AsyncGenerator[LogLine, None]:
        """Yield what its ranks have printed, in the order of time; with `follow` what they print,
        until the job ends. At most a few thousand lines are held, whatever is printed.

        Raises:
            RefusedError: no such ranks, or too many pods at a time.
        """
        read = logs.followed if follow else logs.until_now
        lines = read(
            self._backend, self._snapshot_and_pods, logs.wanted(tail, since_seconds), ranks
        )
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield line

    async def why(self) -> Diagnosis:
        """Say why it is as it is: a sentence, the evidence, and what can be done."""
        job, pods = await self._snapshot_and_pods()
        return diagnose(job, pods, datetime.now(UTC))

    async def report(
        self, *, metrics: str | Path | None = None, prices: Mapping[str, float] | None = None
    ) -> JobReport:
        """Make a report, of a job that runs or has ended.

        Args:
            metrics: the trainer's metrics.jsonl, or the directory of checkpoints that it is in,
                where no pod runs that it could be read in.
            prices: what a GPU costs an hour, such as `{"nvidia-h100-80gb": 3.5}`; `gpu` is any
                other.

        Raises:
            UnreadableError: there is no metrics.jsonl.
        """
        history = None if metrics is None else await asyncio.to_thread(read_metrics, Path(metrics))
        await self._snapshot()
        with _gone(self.name):
            return JobReport(await self._backend.facts(self.key, history), prices)

    async def stop(self) -> None:
        """Give up its pods and keep its state; `resume` goes on."""
        await self._change(changes.stop)

    async def resume(self) -> None:
        """Go on with a job that was stopped."""
        await self._change(changes.resume)

    async def restart(self) -> None:
        """Start all its pods anew, from its checkpoint; not charged."""
        await self._change(changes.restart)

    async def delete(self) -> None:
        """Delete it with all it owns; its checkpoints stay where they outlive pods."""
        await self._snapshot()
        with _gone(self.name):
            await self._backend.delete(self.key, self.uid)

    async def _change(self, plan: Callable[[JobSnapshot, datetime], Change]) -> None:
        change = plan(await self._snapshot(), datetime.now(UTC))
        with _gone(self.name):
            await self._backend.patch(self.key, self.uid, change.patch)

    async def _snapshot(self) -> JobSnapshot:
        with _gone(self.name):
            job = JobSnapshot.read(await self._backend.job(self.key))
        if job.uid != self.uid:
            raise JobGoneError(self.name)
        return job

    async def _snapshot_and_pods(self) -> tuple[JobSnapshot, Pods]:
        job, pods = await asyncio.gather(self._snapshot(), self._backend.pods(self.key))
        return job, Pods.of(job, pods)


@contextlib.contextmanager
def _gone(name: str) -> Generator[None, None, None]:
    """That there is no such job means that it is there no more."""
    try:
        yield
    except (NoSuchJobError, NotFoundError):
        raise JobGoneError(name) from None
