"""One local pod: its manifest with the status that a kubelet would report, and its process."""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from ddp_operator.api.constants import ENV_STATUS_PORT, LABEL_ATTEMPT, LABEL_JOB_NAME
from ddp_operator.api.rules import trainer_container
from ddp_operator.ports import Key, Manifest

from ddp_client.local.machine import status
from ddp_client.local.machine.container import (
    ContainerProcess,
    PodContext,
    container_process,
    master_host,
    status_port_like,
)
from ddp_client.local.machine.errors import ContainerConfigError
from ddp_client.local.machine.gpus import GpuPool, gpus_of
from ddp_client.local.machine.loopback import LoopbackAddresses, LoopbackPorts
from ddp_client.local.machine.process import PodProcess
from ddp_client.local.machine.volumes import mounted_directories
from ddp_client.local.machine.workdir import Workdir

_START_ERROR_EXIT_CODE = 128
"""Exit code of container runtimes for a command that cannot start, with reason StartError."""
_DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' default of terminationGracePeriodSeconds."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Objects that all pods of a run share."""

    workdir: Workdir
    gpus: GpuPool
    addresses: LoopbackAddresses
    ports: LoopbackPorts
    config_maps: Mapping[str, Manifest]
    python: str
    """Path of the interpreter that runs the scripts."""


class LocalPod:
    """A pod from its creation to its removal; `changed` is called after each change
    of `manifest`.
    """

    def __init__(
        self,
        manifest: Manifest,
        machine: Machine,
        *,
        changed: Callable[["LocalPod"], None],
        on_line: Callable[[Key, str], None],
    ) -> None:
        self.manifest: dict[str, Any] = deepcopy(dict(manifest))
        metadata = self.manifest["metadata"]
        metadata["uid"] = str(uuid4())
        metadata["creationTimestamp"] = status.timestamp(_now())
        self.manifest["status"] = status.pending()
        self.key = Key.of(manifest)
        self.job = Key(metadata["namespace"], (metadata.get("labels") or {})[LABEL_JOB_NAME])
        self._machine = machine
        self._changed = changed
        self._on_line = on_line
        self._container = trainer_container(self.manifest)
        host = self.manifest["spec"].get("hostname", self.key.name)  # as in Kubernetes
        self._address = machine.addresses.of(self.job, host)
        self._process: PodProcess | None = None

    @property
    def deleting(self) -> bool:
        """True if the pod is being deleted."""
        return "deletionTimestamp" in self.manifest["metadata"]

    @property
    def running(self) -> bool:
        """True if its process runs."""
        return bool(self.manifest["status"]["phase"] == "Running")

    @property
    def pid(self) -> int | None:
        """The process above all others of the pod; None if it does not run."""
        return self._process.pid if self._process else None

    @property
    def scheduled(self) -> bool:
        """True if it has all the resources of this machine that it needs."""
        return "nodeName" in self.manifest["spec"]

    async def run(self) -> None:
        """Run the pod: wait for GPUs, start its process, and report its end."""
        wanted, pool = gpus_of(self._container), self._machine.gpus
        if wanted > pool.total:
            message = (
                f"this machine has {pool.total or 'no'} NVIDIA GPU{'s' * (pool.total != 1)}, "
                f"the pod requests {wanted}"
            )
            self._report(status.unschedulable(message, _now()))
            return
        async with pool.lend(wanted) as gpus:
            self.manifest["spec"]["nodeName"] = status.NODE
            try:
                directory = self._machine.workdir.fresh_pod(self.key)
                process = self._prepare(directory, gpus)
            except (ContainerConfigError, OSError) as error:
                name, reason = self._container["name"], "CreateContainerConfigError"
                self._report(status.waiting(name, reason=reason, message=str(error), now=_now()))
                return
            await self._run(process, directory)

    def patch_labels(self, labels: Mapping[str, str | None]) -> None:
        """Set labels; None removes one."""
        old = self.manifest["metadata"].get("labels") or {}
        merged = {**old, **labels}
        self._patch_metadata(labels={name: v for name, v in merged.items() if v is not None})

    def delete(self, *, grace_seconds: int | None) -> None:
        """Ask a running pod to end, and end it after its grace period.

        Args:
            grace_seconds: None for the pod's own.
        """
        own = self.manifest["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        grace = own if grace_seconds is None else grace_seconds
        if not self.deleting:
            self._patch_metadata(
                deletionTimestamp=status.timestamp(_now()), deletionGracePeriodSeconds=grace
            )
            if self._process and grace > 0:
                self._process.stop()
        if self._process:
            asyncio.get_running_loop().call_later(grace, self._process.kill)

    def kill(self) -> None:
        """Kill all its processes, like a crash. The pod itself stays."""
        if self._process:
            self._process.kill()

    def _prepare(self, directory: Path, gpus: tuple[str, ...]) -> ContainerProcess:
        metadata = self.manifest["metadata"]
        attempt = (metadata.get("labels") or {}).get(LABEL_ATTEMPT, "")
        workdir = self._machine.workdir
        master_port = self._machine.ports.rendezvous(self.job, attempt=attempt)
        like = status_port_like(self._container, master_port)
        host, ports = master_host(self._container), self._machine.ports
        # Until it is replaced, rank 0's pod has the name of its host.
        leader = Key(self.key.namespace, host)
        leader_port = ports.status(leader, like=like) if host else None
        status_port = ports.status(self.key, like=like)
        self._tell_status_port(status_port)
        context = PodContext(
            environment=os.environ,
            python=self._machine.python,
            launcher_python=sys.executable,
            master_address=self._machine.addresses.of(self.job, host) if host else self._address,
            master_port=master_port,
            status_port=status_port,
            leader_port=leader_port,
            termination_log=directory / "termination-log",
            gpus=gpus,
            cores=len(os.sched_getaffinity(0)),
            directories=mounted_directories(
                self.manifest["spec"],
                self._container,
                persistent=workdir.volumes,
                ephemeral=directory / "volumes",
                config_maps=self._machine.config_maps,
            ),
        )
        process = container_process(self._container, context)
        cwd = process.working_directory
        if cwd is not None and not cwd.is_dir():
            raise ContainerConfigError(
                f"container {self._container['name']}: workingDir {cwd} is not a directory here; "
                "remove it, or mount a volume there"
            )
        return process

    def _tell_status_port(self, port: int) -> None:
        """Write the port of this trainer's status into the manifest: all pods share the ports of
        this machine, because servers listen at all its addresses.
        """
        containers: list[dict[str, Any]] = self.manifest["spec"]["containers"]
        trainer = next(c for c in containers if c is self._container)
        others = [e for e in trainer.get("env") or () if e.get("name") != ENV_STATUS_PORT]
        trainer["env"] = [*others, {"name": ENV_STATUS_PORT, "value": str(port)}]

    async def _run(self, what: ContainerProcess, directory: Path) -> None:
        started = _now()
        log = self._machine.workdir.log_of(self.key)
        log_start = log.stat().st_size if log.exists() else 0
        file = directory / "termination-log"
        name = self._container["name"]
        on_line = self._on_line
        try:
            if shutil.which(what.command[0], path=what.environment["PATH"]) is None:
                raise FileNotFoundError(f"{what.command[0]}: no such program on PATH")
            self._process = await PodProcess.start(
                what, log=log, on_line=lambda line: on_line(self.key, line)
            )
        except OSError as error:
            self._report(
                status.terminated(
                    name,
                    exit_code=_START_ERROR_EXIT_CODE,
                    reason="StartError",
                    message=str(error),
                    started=started,
                    finished=started,
                )
            )
            return
        if self.deleting:
            self._process.kill()  # deleted while it started
        self._report(status.running(name, started, address=self._address))
        code = await self._process.wait()
        policy = self._container.get("terminationMessagePolicy")
        message = status.termination_message(
            file,
            log=log,
            log_start=log_start,
            fall_back_to_log=policy == "FallbackToLogsOnError" and code != 0,
        )
        self._process = None
        self._report(
            status.terminated(
                name, exit_code=code, message=message, started=started, finished=_now()
            )
        )

    def _report(self, new: status.Status) -> None:
        self.manifest = {**self.manifest, "status": new}
        self._changed(self)

    def _patch_metadata(self, **fields: Any) -> None:
        metadata = {**self.manifest["metadata"], **fields}
        self.manifest = {**self.manifest, "metadata": metadata}
        self._changed(self)


def _now() -> datetime:
    return datetime.now(UTC)
