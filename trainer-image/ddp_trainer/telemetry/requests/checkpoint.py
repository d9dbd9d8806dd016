"""Passes a request for a checkpoint from the launcher to the rank that saves.

A client that knows that a node will soon go away asks the pod's launcher. The launcher does not
train, so it always answers. The rank regularly checks for a request.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, replace_file

_BYTES = 8


class CheckpointRequest:
    """The last request, in a file beside the pod's status file.

    The file exists while a rank checks for requests.
    """

    def __init__(self, status_file: Path) -> None:
        """Set the path; no file is read yet."""
        self._path = status_file.with_name(f".{status_file.name}.checkpoint")
        self._answered = ""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> CheckpointRequest | None:
        """Create the file for a rank, which checks it from now on; None without a launcher."""
        path = env.get(STATUS_FILE_VARIABLE)
        if not path:
            return None
        request = cls(Path(path))
        try:
            replace_file(request._path, "")
        except OSError:
            return None  # without requests, training can continue
        return request

    def make(self) -> bool:
        """Request a checkpoint; return False if no rank checks for requests.

        Raises:
            OSError: the request cannot be written.
        """
        if not self._path.exists():
            return False
        replace_file(self._path, secrets.token_hex(_BYTES))
        return True

    def look_away(self) -> None:
        """Remove the file: this rank no longer saves, and requests must fail."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def is_open(self) -> bool:
        """Return True if there is a new request since the last `answer`."""
        return self._last() != self._answered

    def answer(self) -> None:
        """Mark all requests so far as handled."""
        self._answered = self._last()

    def _last(self) -> str:
        """Return the ID of the last request; the last answered one if the file cannot be read."""
        try:
            with self._path.open(errors="replace") as file:
                return file.read(2 * _BYTES)
        except OSError:
            return self._answered
