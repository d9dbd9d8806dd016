"""The `Cluster` port on this machine: objects in memory, pods as processes."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, Protocol, Self
from uuid import uuid4

from ddp_operator.api.values.bounded import format_time
from ddp_operator.api.values.merge_patch import patched
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import (
    LOG_END_BYTES,
    AlreadyExistsError,
    ConflictError,
    Event,
    Key,
    Manifest,
    NotFoundError,
    controller_of,
)

from ddp_client.local.machine.gpus import GpuPool, visible_gpus
from ddp_client.local.machine.localhost import Crossing, crossings
from ddp_client.local.machine.loopback import LoopbackAddresses, LoopbackPorts
from ddp_client.local.machine.objects import (
    NoOtherObjects,
    require_same_controller,
)
from ddp_client.local.machine.pod import LocalPod, Machine
from ddp_client.local.machine.workdir import Workdir

_logger = logging.getLogger(__name__)


class Listener(Protocol):
    """Receives changes, like a watch on a real cluster."""

    def job_changed(self, job: Manifest) -> None:
        """A job was stored, or its status was patched."""

    def job_deleted(self, job: Key) -> None:
        """A job is gone."""

    def pods_changed(self, job: Key) -> None:
        """A pod of the job appeared, changed or disappeared."""

    def pod_logged(self, pod: Key, line: str) -> None:
        """A pod printed a line."""

    def event_emitted(self, job: Key, event: Event) -> None:
        """An Event about a job was emitted."""


class LocalCluster(NoOtherObjects):
    """Implements `ports.Cluster`.

    Use it as an asynchronous context manager: no pod outlives the context. The listener is called
    from the event loop, never during a call of one of these methods.
    """

    def __init__(
        self,
        *,
        workdir: Workdir,
        listener: Listener,
        config_maps: Mapping[str, Manifest],
        python: str = sys.executable,
    ) -> None:
        self._listener = listener
        self._machine = Machine(
            workdir=workdir,
            gpus=GpuPool(visible_gpus(os.environ)),
            addresses=LoopbackAddresses(),
            ports=LoopbackPorts(),
            config_maps=config_maps,
            python=python,
        )
        self._jobs: dict[Key, dict[str, Any]] = {}
        self._pods: dict[Key, LocalPod] = {}
        self._lives: dict[Key, asyncio.Task[None]] = {}
        self._resource_version = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.delete_all_pods(grace_seconds=0)

    # A user does these with kubectl.

    def create_job(self, manifest: Manifest) -> Manifest:
        """Store a job and return it with the fields that the API server would add.

        Raises:
            AlreadyExistsError: a job of that name exists.
        """
        job = deepcopy(dict(manifest))
        key = Key.of(job)
        if key in self._jobs:
            raise AlreadyExistsError(f"ddpjob {key} already exists", status=409)
        job["metadata"].update(
            uid=str(uuid4()), generation=1, creationTimestamp=format_time(datetime.now(UTC))
        )
        return self._store(key, job)

    def job(self, key: Key) -> Manifest | None:
        """Return the job as stored, or None if it does not exist."""
        return deepcopy(self._jobs.get(key))

    def jobs(self) -> list[Manifest]:
        """Return all jobs as stored, oldest first."""
        return deepcopy([*self._jobs.values()])

    def patch_job(self, key: Key, patch: Mapping[str, Any], *, uid: str) -> Manifest:
        """Merge a user's change into a job, except into its status.

        Raises:
            NotFoundError: the job no longer exists.
        """
        stored = self._jobs.get(key)
        if stored is None or stored["metadata"]["uid"] != uid:
            raise NotFoundError(f"ddpjob {key} does not exist", status=404)
        changes = {name: deepcopy(patch[name]) for name in patch if name != "status"}
        changed = patched(stored, changes)
        if changed["spec"] != stored["spec"]:
            changed["metadata"]["generation"] += 1
        return self._store(key, changed)

    def pod_manifests(self, job: Key) -> list[Manifest]:
        """Return the job's pods, oldest first."""
        return [pod.manifest for pod in self._pods.values() if pod.job == job]

    async def crossings(self) -> set[Crossing]:
        """Return connections at localhost between pods, which fail in a cluster."""
        pids = {pod.key.name: pid for pod in self._pods.values() if (pid := pod.pid)}
        return await asyncio.to_thread(crossings, pids) if len(pids) > 1 else set()

    def may_print(self, pod: Key) -> bool:
        """Return whether a pod has not ended yet."""
        status = self._pods[pod].manifest["status"] if pod in self._pods else {}
        return status.get("phase") in ("Pending", "Running")

    def kill_pod(self, pod: Key) -> bool:
        """Kill a pod's processes with SIGKILL, like a crash. Return False if none run."""
        local_pod = self._pods.get(pod)
        if local_pod is None or not local_pod.running:
            return False
        local_pod.kill()
        return True

    async def delete_all_pods(self, *, grace_seconds: int | None) -> None:
        """Delete all pods and wait until they are gone."""
        for key in list(self._pods):
            await self.delete_pod(key, grace_seconds=grace_seconds)
        if self._lives:
            # Each pod ends after its grace period at the latest, when it is killed.
            await asyncio.wait(list(self._lives.values()))

    # The engine does these.

    def pods_of(self, job: Key) -> list[PodState]:
        """See `ports.Cluster`."""
        return [project(manifest) for manifest in self.pod_manifests(job)]

    async def create_pod(self, manifest: Manifest) -> None:
        """See `ports.Cluster`."""
        key = Key.of(manifest)
        existing = self._pods.get(key)
        if existing is not None:
            require_same_controller(existing=existing.manifest, wanted=manifest)
            return
        pod = LocalPod(
            manifest, self._machine, changed=self._pod_changed, on_line=self._listener.pod_logged
        )
        self._pods[key] = pod
        self._pod_changed(pod)
        life = asyncio.create_task(pod.run(), name=f"pod {key}")
        self._lives[key] = life
        life.add_done_callback(lambda life: self._ended(pod, life))

    def uid_of(self, pod: Key) -> str | None:
        """See `ports.Cluster`. Nobody else creates pods here, and no pod has a UID."""

    async def delete_pod(
        self, pod: Key, *, grace_seconds: int | None, uid: str | None = None
    ) -> None:
        """See `ports.Cluster`."""
        del uid
        local_pod = self._pods.get(pod)
        if local_pod is None:
            return
        life = self._lives.get(pod)
        local_pod.delete(grace_seconds=grace_seconds)
        if life is None:
            self._remove(local_pod)
        elif not local_pod.scheduled:
            life.cancel()  # it waits for a GPU

    async def delete_pods(
        self,
        pods: Mapping[Key, str | None],
        *,
        labels: Mapping[str, Sequence[str]],
        grace_seconds: int | None,
    ) -> Sequence[Key]:
        """See `ports.Cluster`. A request costs nothing here, so each pod has its own."""
        del labels, grace_seconds
        return tuple(pods)

    async def patch_pod(
        self, pod: Key, metadata: Mapping[str, Any], *, uid: str | None = None
    ) -> None:
        """See `ports.Cluster`. Only labels mean something here."""
        del uid
        if pod in self._pods:
            self._pods[pod].patch_labels(metadata.get("labels") or {})

    async def patch_status(
        self, job: Key, status: Manifest, *, resource_version: str | None
    ) -> Manifest:
        """See `ports.Cluster`."""
        stored = self._jobs.get(job)
        if stored is None:
            raise NotFoundError(f"ddpjob {job} does not exist", status=404)
        current = stored["metadata"]["resourceVersion"]
        if resource_version is not None and resource_version != current:
            raise ConflictError(
                f"ddpjob {job} is at resourceVersion {current}, not {resource_version}", status=409
            )
        changed = patched(stored.get("status") or {}, deepcopy(status))
        return self._store(job, {**stored, "status": changed})

    async def delete_job(self, job: Key, *, uid: str) -> None:
        """See `ports.Cluster`."""
        stored = self._jobs.get(job)
        if stored is None or stored["metadata"]["uid"] != uid:
            return
        del self._jobs[job]
        for pod in list(self._pods.values()):
            if controller_of(pod.manifest).get("uid") == uid:
                await self.delete_pod(pod.key, grace_seconds=None)
        _soon(self._listener.job_deleted, job)

    async def log_end(self, pod: Key, container: str) -> bytes:  # noqa: ARG002
        """See `ports.Cluster`. All containers of a pod print into one log."""
        try:
            with self._machine.workdir.log_of(pod).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - LOG_END_BYTES, 0))
                return file.read(LOG_END_BYTES)
        except OSError as error:
            raise NotFoundError(f"no log of pod {pod}: {error}") from error

    async def emit_event(self, job: Manifest, event: Event) -> None:
        """See `ports.Cluster`."""
        _soon(self._listener.event_emitted, Key.of(job), event)

    def _store(self, key: Key, job: dict[str, Any]) -> Manifest:
        job["metadata"] = {**job["metadata"], "resourceVersion": self._next_version()}
        self._jobs[key] = job
        _soon(self._listener.job_changed, deepcopy(job))
        return deepcopy(job)

    def _next_version(self) -> str:
        self._resource_version += 1
        return str(self._resource_version)

    def _ended(self, pod: LocalPod, life: asyncio.Task[None]) -> None:
        del self._lives[pod.key]
        if not life.cancelled() and (error := life.exception()) is not None:
            _logger.error("pod %s is lost because of a bug", pod.key, exc_info=error)
        if pod.deleting:
            self._remove(pod)

    def _pod_changed(self, pod: LocalPod) -> None:
        pod.manifest["metadata"]["resourceVersion"] = self._next_version()
        _soon(self._listener.pods_changed, pod.job)

    def _remove(self, pod: LocalPod) -> None:
        del self._pods[pod.key]
        _soon(self._listener.pods_changed, pod.job)


def _soon(call: Callable[..., None], *arguments: object) -> None:
    asyncio.get_running_loop().call_soon(call, *arguments)
