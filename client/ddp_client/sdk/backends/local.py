"""The backend for this machine: the operator's engine, with processes as pods."""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.manifests import CHECKPOINT_VOLUME
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import AlreadyExistsError, Event, Key, Manifest

from ddp_client.local.machine import LocalCluster, Workdir, WorkdirInUseError
from ddp_client.local.run.command import refuse_what_cannot_run
from ddp_client.local.run.engine import local_engine
from ddp_client.local.run.manifest import job_file
from ddp_client.local.run.record import Record
from ddp_client.pod_security import PodSecurity
from ddp_client.remote.cluster import NoSuchJobError
from ddp_client.remote.submission import NameTakenError
from ddp_client.report import Facts
from ddp_client.report.files import UnreadableError, read_metrics, read_run
from ddp_client.report.history import History
from ddp_client.sdk.backends.log_files import LogFiles
from ddp_client.submit import CodeFolder
from ddp_client.views.job.queueing import UNKNOWN, QueueState
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.own_remedies import NONE, OwnRemedies

NAMESPACE: Final = "default"
_PROGRESS_SECONDS: Final = 1.0
_END_SECONDS: Final = 10.0


class LocalBackend:
    """Implements `Backend` and `local.Listener`; no process outlives its context."""

    def __init__(self, workdir: Path | None) -> None:
        self._asked_for = workdir
        self._config_maps: dict[str, Manifest] = {}
        self._records: dict[Key, Record] = defaultdict(Record)
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.workdir = Workdir(self._asked_for or Path(tempfile.mkdtemp(prefix="ddpjobs-")))
        try:
            self.workdir.claim()
        except WorkdirInUseError:
            self.workdir.release()
            raise
        self._log_files = LogFiles(lambda pod: self.workdir.path / "pods" / pod.name / "printed")
        self._cluster = LocalCluster(
            workdir=self.workdir,
            listener=self,
            config_maps=self._config_maps,
        )
        self._engine = local_engine(self._cluster, progress_seconds=_PROGRESS_SECONDS)
        self._engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._engine.stop(at_once=True)
        finally:
            await self._cluster.delete_all_pods(grace_seconds=0)
            self._tell()
            self.workdir.release()

    @property
    def namespace(self) -> str:
        """See `Backend`."""
        return NAMESPACE

    async def pod_security(self, namespace: str) -> PodSecurity | None:
        """See `Backend`."""
        del namespace
        return None

    async def nodes(self) -> None:
        """See `Backend`."""

    async def queue_state(self, job: JobSnapshot) -> QueueState:
        """See `Backend`."""
        del job
        return UNKNOWN

    async def own_remedies(self, namespace: str) -> OwnRemedies:
        """See `Backend`."""
        del namespace
        return NONE

    async def store_code(self, namespace: str, job: Manifest, code: CodeFolder) -> None:
        """See `Backend`. A local run reads the folder itself."""
        del namespace, job, code

    async def create(self, job: Manifest, config_maps: Sequence[Manifest]) -> Manifest:
        """See `Backend`.

        Raises:
            ManifestError: the manifest is not a job, or cannot run on this machine.
        """
        file = job_file([job, *config_maps], where="manifest")
        refuse_what_cannot_run(file.job)
        try:
            made = self._cluster.create_job(file.manifest)
        except AlreadyExistsError:
            raise NameTakenError(file.job.key, "delete it first") from None
        self._config_maps |= file.config_maps  # before the engine sees its pods
        return made

    async def job(self, key: Key) -> Manifest:
        """See `Backend`."""
        found = self._cluster.job(key)
        if found is None:
            raise NoSuchJobError(key, "jobs() lists the jobs of this client; they end with it")
        return found

    async def jobs(self, namespace: str | None) -> AsyncIterator[Manifest]:
        """See `Backend`."""
        for job in self._cluster.jobs():
            if namespace in (None, job["metadata"]["namespace"]):
                yield job

    async def changes(self, key: Key) -> AsyncGenerator[Manifest | None, None]:
        """See `Backend`."""
        version = ""
        while True:
            news, job = self._news, self._cluster.job(key)
            if job is None:
                yield None
                return
            if job["metadata"]["resourceVersion"] != version:
                version = job["metadata"]["resourceVersion"]
                yield job
            else:
                await news.wait()  # the caller sets the timeout

    async def pods(self, key: Key) -> list[PodState]:
        """See `Backend`."""
        return self._cluster.pods_of(key)

    def log(
        self, pod: Key, container: str, options: Mapping[str, str], *, idle_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """See `Backend`; a pod has one container here."""
        del container
        return self._log_files.read(
            pod, options, idle_seconds=idle_seconds, ended=lambda: not self._cluster.may_print(pod)
        )

    async def facts(self, key: Key, history: History | None) -> Facts:
        """See `Backend`; the metrics are beside the job's checkpoints."""
        job = await self.job(key)
        folder = self.workdir.path / "records" / key.name
        folder.mkdir(parents=True, exist_ok=True)
        self._records[key].write(folder)
        if history is None:
            try:
                history = read_metrics(self._checkpoints(DDPJob.parse(job)))
            except UnreadableError:
                history = History()  # the facts name this gap
        return read_run(folder, history=history)

    def _checkpoints(self, job: DDPJob) -> Path:
        where = job.spec.checkpoint
        if where.host_path:
            return Path(where.host_path)
        volume = where.persistent_volume_claim or where.gcs_bucket
        if volume:
            return self.workdir.volumes / volume
        newest = Identity(0, job.status.attempt).pod_name(job.name)
        return self.workdir.path / "pods" / newest / "volumes" / CHECKPOINT_VOLUME

    async def patch(self, key: Key, uid: str, patch: Mapping[str, Any]) -> None:
        """See `Backend`."""
        self._cluster.patch_job(key, patch, uid=uid)

    async def delete(self, key: Key, uid: str) -> None:
        """See `Backend`."""
        await self._cluster.delete_job(key, uid=uid)

    # Notifications from the local cluster.

    def job_changed(self, job: Manifest) -> None:
        """See `local.Listener`."""
        self._engine.job_changed(job)
        self._records[Key.of(job)].job(job)
        self._tell()

    def job_deleted(self, job: Key) -> None:
        """See `local.Listener`."""
        self._engine.job_gone(job)
        self._records.pop(job, None)
        self._tell()

    def pods_changed(self, job: Key) -> None:
        """See `local.Listener`."""
        self._engine.pods_changed(job)
        if self._cluster.job(job) is not None:
            self._records[job].pods(self._cluster.pod_manifests(job))
        self._log_files.wake()

    def pod_logged(self, pod: Key, line: str) -> None:
        """See `local.Listener`."""
        self._log_files.add(pod, line)

    def event_emitted(self, job: Key, event: Event) -> None:
        """See `local.Listener`."""
        if self._cluster.job(job) is not None:
            self._records[job].event(job, event)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
