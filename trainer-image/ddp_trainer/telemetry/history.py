"""`metrics.jsonl`: what rank 0 measured, a JSON line at a time, beside the checkpoints.

The file tells of the run that the newest checkpoint goes on: lines of steps that are taken back
because training resumes before them are removed, and nothing is told twice.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ddp_trainer.system.logs import DistinctErrors
from ddp_trainer.telemetry.wire import utc

FILE_NAME = "metrics.jsonl"

_logger = logging.getLogger(__name__)


class Record(Protocol):
    """Where it is written down how the training went; nothing of it may end a training."""

    def rewind(self, step: int) -> None:
        """Training goes on at `step`: take back what was told of later ones."""

    def append(self, kind: str, *, step: int, **values: Any) -> None:
        """Tell of a step."""

    def close(self) -> None:
        """Have what was told last."""


class History:
    """Appends lines whose steps grow; what cannot be written is logged, and training goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._is_sound = False
        """Whether the file's last line is known to be whole and told so far."""
        self._told: dict[str, int] = {}
        """The newest step of each kind of line."""
        self._errors = DistinctErrors(_logger, f"cannot write {path}")

    def rewind(self, step: int) -> None:
        """Training goes on at `step`: take back what was told of later ones."""
        if not self._is_sound or any(told > step for told in self._told.values()):
            self.close()
            self._survive(lambda: self._cut(step))

    def append(self, kind: str, *, step: int, **values: Any) -> None:
        """Tell of a step, unless a line of this kind told of it, or of a later one, before."""
        if step <= self._told.get(kind, -1):
            return
        line = {"time": utc(time.time()), "kind": kind, "step": step, **_finite(values)}
        self._survive(lambda: self._write(json.dumps(line) + "\n"))
        self._told[kind] = step

    def close(self) -> None:
        """Let go of the file until the next line: on some file systems only that makes it last."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._survive(lambda: os.close(fd))  # where some file systems say that a disk is full

    def _write(self, line: str) -> None:
        if not self._is_sound:  # the last line may be a part of one
            self._cut(max(self._told.values(), default=0))
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        data = line.encode()
        self._is_sound = False
        if os.write(self._fd, data) == len(data):
            self._is_sound = True

    def _cut(self, step: int) -> None:
        """End the file before the first line that is not whole or is of a later step."""
        self._told, end = {}, 0
        if self._path.exists():
            with self._path.open("rb+") as file:
                for line in file:
                    kind, told = _parse(line)
                    if told is None or told > step:
                        break
                    self._told[kind] = told
                    end += len(line)
                if end < file.seek(0, os.SEEK_END):
                    file.truncate(end)
        self._is_sound = True

    def _survive(self, action: Callable[[], None]) -> None:
        if not self._errors.attempt(action):
            self._is_sound = False


def _parse(line: bytes) -> tuple[str, int | None]:
    try:
        values = json.loads(line) if line.endswith(b"\n") else {}
        return str(values["kind"]), int(values["step"])
    except (ValueError, KeyError, TypeError):
        return "", None


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no NaN: such a value becomes null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }
