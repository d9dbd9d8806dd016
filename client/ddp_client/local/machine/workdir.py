"""The directory of a local run: logs to read, and volumes that outlive it."""

import fcntl
import os
import shutil
from pathlib import Path

from ddp_operator.ports import Key


class WorkdirInUseError(Exception):
    """Another run uses this directory now."""


class Workdir:
    """Where a local run keeps its files.

    `logs/<pod>.log` has the pod's output, `volumes/<name>` the content of its claims and buckets,
    `pods/<pod>/` what is deleted with the pod.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self.volumes = self.path / "volumes"
        for directory in (self.logs, self.volumes, self.path / "pods"):
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)

    def claim(self) -> None:
        """Lock the directory against other runs, until this process ends or calls `release`.

        Raises:
            WorkdirInUseError: another run uses it.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WorkdirInUseError(f"{self.path} is in use by another run") from None

    def release(self) -> None:
        """Unlock the directory; it must not be used after this."""
        os.close(self._lock)

    def log_of(self, pod: Key) -> Path:
        """Return the file with a pod's output."""
        return self.logs / f"{pod.name}.log"

    def fresh_pod(self, pod: Key) -> Path:
        """Create an empty directory that is deleted with the pod."""
        directory = self.path / "pods" / pod.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return directory
