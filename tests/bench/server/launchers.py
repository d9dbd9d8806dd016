"""A cluster in memory with one job. Its pods are launchers: processes of this machine, each with an
address of its own on loopback.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ddp_operator.api.constants import LABEL_INDEX
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key, Manifest
from ddp_trainer.system.deathsignal import die_with_parent

from tests.unit.engine.fakes import FakeCluster

_STOP_SECONDS = 60.0
_PER_NETWORK = 250


class LauncherCluster(FakeCluster):
    """Pods run from the moment in which they are created, and `stop` ends them all.

    As a reflector does, it keeps what is needed of a pod, rather than to read its manifest at each
    look.
    """

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        """`command`: what each launcher runs as its ranks; `folder`: where all they print goes."""
        super().__init__()
        self._folder = folder
        self._command = command
        self._states: dict[Key, PodState] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def pods_of(self, job: Key) -> list[PodState]:
        """Return the pods of the only job."""
        return list(self._states.values()) if job in self.jobs else []

    async def create_pod(self, manifest: Manifest) -> None:
        """Start its launcher."""
        await super().create_pod(manifest)
        key = Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        if key in self._states:
            return
        index = int(manifest["metadata"]["labels"][LABEL_INDEX])
        self._start(key.name, manifest, address_of(index))
        now = datetime.now(UTC).isoformat()
        (container,) = manifest["spec"]["containers"]
        self.pods[key]["status"] = {
            "phase": "Running",
            "podIP": address_of(index),
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": container["name"], "state": {"running": {"startedAt": now}}}
            ],
        }
        self._states[key] = project(self.pods[key])
        if job := job_of(manifest):
            self.tell(job)

    def ended(self) -> list[str]:
        """Return the names of pods without a running launcher."""
        names = [key.name for key in self._states]
        return [
            name
            for name, process in zip(names, self._processes, strict=False)
            if process.poll() is not None
        ]

    def stop(self) -> None:
        """End all launchers, and with them their ranks; those that do not end are killed."""
        for process in self._processes:
            process.terminate()
        until = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, name: str, manifest: Manifest, address: str) -> None:
        (container,) = manifest["spec"]["containers"]
        told = {entry["name"]: str(entry["value"]) for entry in container["env"]}
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.trainer.support.launcher_at", address, "{}"),
                    *self._command,
                ],
                env={
                    **os.environ,
                    **told,
                    "MASTER_ADDR": address_of(0),  # as a name server would say
                    "DDP_TERMINATION_LOG": str(self._folder / f"{name}.termination"),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509
            )
        self._processes.append(process)


def address_of(index: int) -> str:
    """Of the pod of a node rank."""
    network, host = divmod(index, _PER_NETWORK)
    return f"127.1.{network}.{host + 1}"
