"""Requests that rank 0 pauses after a snapshot, so that its group restarts without losing a step.

Other ranks then wait for rank 0 in the next step, wherever they exchange gradients. The launcher
writes the request to the volume. Nothing here imports torch, because both use it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ddp_trainer.memory.volume import Volume
from ddp_trainer.telemetry.status import replace_file

EVERY_SECONDS = 0.1
"""How often a rank that pauses looks at the request, and reports that it still pauses."""


class PauseRequest:
    """The request in the volume of a pod."""

    def __init__(self, volume: Volume) -> None:
        self._path: Path = volume.directory / "pause"

    def make(self, *, after: int) -> None:
        """Request a pause at the first snapshot of a step later than `after`.

        Raises:
            OSError: the volume cannot be written.
        """
        replace_file(self._path, str(after))

    def withdraw(self) -> None:
        """Remove the request; a rank that pauses continues."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def includes(self, step: int) -> bool:
        """Return whether rank 0 must pause, or still pauses, at the snapshot of a step."""
        try:
            return step > int(self._path.read_text())
        except (OSError, ValueError):
            return False
