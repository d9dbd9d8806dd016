"""A checkpoint that somebody outside asks for, from the launcher to the rank that saves.

Whoever knows that a node will be gone soon asks the pod's launcher, which trains nothing and so
always hears; the rank looks now and then whether it was asked.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, replace_file

_BYTES = 8


class CheckpointRequest:
    """The last one; kept in a file beside the pod's status, which is there while a rank looks."""

    def __init__(self, status_file: Path) -> None:
        """Nothing is looked at yet."""
        self._path = status_file.with_name(f".{status_file.name}.checkpoint")
        self._answered = ""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> CheckpointRequest | None:
        """As a rank finds it, which looks from here on; None where no launcher listens."""
        path = env.get(STATUS_FILE_VARIABLE)
        if not path:
            return None
        request = cls(Path(path))
        try:
            replace_file(request._path, "")
        except OSError:
            return None  # as with the status: what cannot be told is no reason to end a training
        return request

    def make(self) -> bool:
        """Ask for one; false where no rank looks.

        Raises:
            OSError: it cannot be written.
        """
        if not self._path.exists():
            return False
        replace_file(self._path, secrets.token_hex(_BYTES))
        return True

    def look_away(self) -> None:
        """This rank saves no more: whoever asks is to know."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def is_open(self) -> bool:
        """Whether one was asked for since the last `answer`."""
        return self._last() != self._answered

    def answer(self) -> None:
        """What was asked for until now is being done."""
        self._answered = self._last()

    def _last(self) -> str:
        """What no two requests have in common; the one before where nothing can be read."""
        try:
            with self._path.open(errors="replace") as file:
                return file.read(2 * _BYTES)
        except OSError:
            return self._answered
