"""One job of a cluster or of this machine."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Key, Manifest, NotFoundError

from ddp_client.remote.cluster import NoSuchJobError
from ddp_client.remote.logs import Wanted
from ddp_client.report.files import read_metrics
from ddp_client.sdk import logs
from ddp_client.sdk.backends.backend import Backend
from ddp_client.sdk.errors import JobFailedError, JobGoneError, ManifestError, WaitTimeoutError
from ddp_client.sdk.logs import LogLine
from ddp_client.sdk.report import JobReport
from ddp_client.sdk.result import JobResult
from ddp_client.views import changes
from ddp_client.views.changes import Change
from ddp_client.views.job.diagnosis import Diagnosis, diagnose
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.own_remedies import with_own

_NOT_SEEN: Final = "not seen yet"


class AsyncJob:
    """A job; each call reads its current state.

    It is identified by its UID: when a new job has the same name, this one is gone.
    """

    def __init__(self, backend: Backend, key: Key, uid: str) -> None:
        self._backend = backend
        self.key = key
        self.uid = uid

    @property
    def name(self) -> str:
        """The job's name."""
        return self.key.name

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return self.key.namespace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {clean(self.key)}>"

    async def manifest(self) -> Manifest:
        """Return the whole job as stored.

        Raises:
            JobGoneError: the job no longer exists.
        """
        return (await self._snapshot()).manifest

    async def read(self) -> DDPJob:
        """Return the job as this release's models: `spec`, `status`, names and times.

        Raises:
            ManifestError: this release cannot read the spec; use `manifest()`.
        """
        job = await self._snapshot()
        if job.parsed is None:
            raise ManifestError(
                f"{clean(self.name)}: this release cannot read its spec: {clean(job.problem)}"
            )
        return job.parsed

    async def status(self) -> DDPJobStatus:
        """Return the job's status; empty if this release cannot read it."""
        return (await self._snapshot()).status

    async def watch(self, *, timeout: float | None = None) -> AsyncGenerator[DDPJobStatus, None]:
        """Yield the job's status now and after each change, until the job ends.

        Raises:
            WaitTimeoutError: the job has not ended within `timeout` seconds.
            JobGoneError: the job was deleted.
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
        """Wait until the job succeeds, and return its last status.

        `on_progress` is called with each new status. Without a `timeout` (seconds) there is no
        limit.

        Raises:
            JobFailedError: the job failed; says why and what to do.
            WaitTimeoutError: the job did not end in time.
            JobGoneError: the job was deleted.
        """
        status = DDPJobStatus()
        async with contextlib.aclosing(self.watch(timeout=timeout)) as states:
            async for status in states:
                if on_progress is not None:
                    on_progress(status)
        return await self.verdict(status)

    async def verdict(self, status: DDPJobStatus) -> DDPJobStatus:
        """Return the status if it is a success.

        Raises:
            JobFailedError: it is not.
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
        """Yield the log lines of the ranks so far, sorted by time.

        With `follow`, yield lines until the job ends. Memory is bounded: at most a few thousand
        lines are held.

        Raises:
            RefusedError: no such ranks, or too many pods at a time.
        """
        read = logs.followed if follow else logs.until_now
        lines = read(self._backend, self._snapshot_and_pods, Wanted.of(tail, since_seconds), ranks)
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield line

    async def why(self) -> Diagnosis:
        """Explain the job's state: a sentence, the evidence, and what to do.

        Remedies from the namespace's ConfigMap `ddp-remedies` come first.
        """
        job, pods = await self._snapshot_and_pods()
        now = datetime.now(UTC)
        general = diagnose(job, pods, now, queue=await self._backend.queue_state(job))
        own = await self._backend.own_remedies(self.namespace)
        return with_own(general, own, job, pods)

    async def result(self, *, metrics: str | Path | None = None) -> JobResult:
        """Return the last metrics, the best score, the newest checkpoint and the curve until now.

        They are in the job's status, so they are there when the pods are gone.

        Args:
            metrics: the trainer's metrics.jsonl, or the checkpoint directory with it, for a curve
                of all logged steps. The status keeps up to 128.

        Raises:
            UnreadableError: there is no metrics.jsonl.
        """
        rows = None
        if metrics is not None:
            rows = (await asyncio.to_thread(read_metrics, Path(metrics))).curve()
        return JobResult.of(await self._snapshot(), rows)

    async def report(
        self,
        *,
        metrics: str | Path | None = None,
        prices: Mapping[str, float] | None = None,
        price_per_pod: float | None = None,
    ) -> JobReport:
        """Build a report about a running or ended job.

        Args:
            metrics: the trainer's metrics.jsonl, or the checkpoint directory with it; needed when
                no pod runs to read it from.
            prices: price per GPU and hour, such as `{"nvidia-h100-80gb": 3.5}`; `gpu` is any other
                type.
            price_per_pod: price per pod and hour.

        Raises:
            UnreadableError: there is no metrics.jsonl.
        """
        history = None if metrics is None else await asyncio.to_thread(read_metrics, Path(metrics))
        await self._snapshot()
        with _gone(self.name):
            facts = await self._backend.facts(self.key, history)
            return JobReport(facts, prices, price_per_pod)

    async def stop(self) -> None:
        """Delete the job's pods and keep the job; `resume` continues it."""
        await self._change(changes.stop)

    async def resume(self) -> None:
        """Continue a stopped job."""
        await self._change(changes.resume)

    async def restart(self) -> None:
        """Restart all pods from the checkpoint; does not count towards maxRestarts."""
        await self._change(changes.restart)

    async def delete(self) -> None:
        """Delete the job and everything it owns, except checkpoints on volumes and in buckets."""
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
    """Turn "no such job" into `JobGoneError`: the job existed before."""
    try:
        yield
    except (NoSuchJobError, NotFoundError):
        raise JobGoneError(name) from None
