"""The directory of a local run: logs to read, and volumes that outlive it."""

import fcntl
import os
import shutil
from pathlib import Path

from ddp_operator.ports import Key


class WorkdirInUseError(Exception):
    """Another run works in this directory now."""


class Workdir:
    """Where a local run keeps its files.

    `logs/<pod>.log` is what a pod printed, `volumes/<name>` what its claims and buckets hold,
    `pods/<pod>/` what dies with the pod.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self.volumes = self.path / "volumes"
        for directory in (self.logs, self.volumes, self.path / "pods"):
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)

    def claim(self) -> None:
        """Keep other runs out for as long as this process lives, or until `release`.

        Raises:
            WorkdirInUseError: one is here already.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WorkdirInUseError(f"{self.path} is in use by another run") from None

    def release(self) -> None:
        """Let others in; nothing of it may be used any more."""
        os.close(self._lock)

    def log_of(self, pod: Key) -> Path:
        """The file of a pod's output."""
        return self.logs / f"{pod.name}.log"

    def fresh_pod(self, pod: Key) -> Path:
        """A new, empty directory that dies with the pod."""
        directory = self.path / "pods" / pod.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return directory
