"""Reports the progress of a script that does not report any itself, from its snapshots.

The script of a job with `spec.memoryCheckpoint` says which steps it completed anyway. Another
writer of the status file, such as the script itself, knows more and is left alone.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ddp_protocol.message import from_json, to_json, utc_to_the_millisecond
from ddp_protocol.progress import Resumption

from ddp_trainer.settings.environment import Environment
from ddp_trainer.system.logs import DistinctErrors
from ddp_trainer.telemetry.status import MAX_BYTES, STATUS_FILE_VARIABLE, Status, replace_file

_WRITER = {"writer": "ddp_trainer.memory"}
"""Marks a status of this module; readers ignore it."""

_logger = logging.getLogger(__name__)


class StatusFileWriter:
    """Writes the status file of the pod of node rank 0."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._errors = DistinctErrors(_logger, "cannot report progress")

    @classmethod
    def of(cls, environment: Environment, env: Mapping[str, str]) -> StatusFileWriter | None:
        """Return the progress that a rank reports; None if another rank does, or none can."""
        path = env.get(STATUS_FILE_VARIABLE)
        is_first = environment.placement.node_rank == 0 and environment.local_rank == 0
        return cls(Path(path)) if path and is_first else None

    def saved(self, step: int) -> None:
        """Report a step that is completed and saved."""
        self._change(step, last_step_time=utc_to_the_millisecond(time.time()))

    def resumed(self, step: int) -> None:
        """Report the step from which the group continues."""
        self._change(step, resumed=Resumption(step=step, time=utc_to_the_millisecond(time.time())))

    def _change(self, step: int, **fields: str | Resumption) -> None:
        def change() -> None:
            status = self._own_status()
            if status is not None:
                document = json.loads(to_json(replace(status, step=step, **fields)))  # type: ignore[arg-type]
                replace_file(self._path, json.dumps({**document, **_WRITER}))

        self._errors.attempt(change)

    def _own_status(self) -> Status | None:
        """Return the status that was written last; None if another writer wrote it."""
        try:
            with self._path.open("rb") as file:
                text = file.read(MAX_BYTES)
        except FileNotFoundError:
            return Status(step=0)
        try:
            document = json.loads(text)
            if isinstance(document, dict) and _WRITER.items() <= document.items():
                return from_json(Status, text)
        except ValueError:
            pass
        return None
