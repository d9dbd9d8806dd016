"""Writes `metrics.jsonl`: rank 0's measurements as JSON lines, beside the checkpoints.

The file matches the newest checkpoint. When training resumes at an earlier step, lines of later
steps are removed. So no step appears twice.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ddp_protocol.message import from_json, utc
from ddp_protocol.progress import Resumption

from ddp_trainer.system.logs import DistinctErrors

FILE_NAME = "metrics.jsonl"

_MOST_FIRST_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class _Start:
    first_steps: tuple[Resumption, ...]


_logger = logging.getLogger(__name__)


class Record(Protocol):
    """A record of the training. Its errors never end the training."""

    def rewind(self, step: int) -> None:
        """Remove entries of steps after `step`; training continues there."""

    def append(self, kind: str, *, step: int, **values: Any) -> None:
        """Add an entry for a step."""

    def close(self) -> None:
        """Write all entries out."""


class History:
    """Appends lines in the order of steps. If a write fails, it logs that; training continues."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._is_sound = False
        """True: the file is known to end with the last line that was appended."""
        self._told: dict[str, int] = {}
        """The newest step of each kind of line."""
        self.first_steps: tuple[Resumption, ...] = ()
        """First steps of the latest groups, oldest first; also those of removed lines."""
        self._errors = DistinctErrors(_logger, f"cannot write {path}")

    def rewind(self, step: int) -> None:
        """Remove lines of steps after `step`; training continues there."""
        if not self._is_sound or any(told > step for told in self._told.values()):
            self.close()
            self._survive(lambda: self._cut(step))

    def append(self, kind: str, *, step: int, **values: Any) -> None:
        """Append a line for a step, unless there is one of this kind for this or a later step."""
        if step <= self._told.get(kind, -1):
            return
        if kind == "start":
            first_step = Resumption(step=step, time=values["lastStepTime"])
            self.first_steps = (*self.first_steps, first_step)[-_MOST_FIRST_STEPS:]
            values["firstSteps"] = [vars(each) for each in self.first_steps]
        line = {"time": utc(time.time()), "kind": kind, "step": step, **_finite(values)}
        self._survive(lambda: self._write(json.dumps(line) + "\n"))
        self._told[kind] = step

    def close(self) -> None:
        """Close the file until the next line; some file systems store its content only then."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._survive(lambda: os.close(fd))  # some file systems report a full disk only here

    def _write(self, line: str) -> None:
        if not self._is_sound:  # the last line may be incomplete
            self._cut(max(self._told.values(), default=0))
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        data = line.encode()
        self._is_sound = False
        if os.write(self._fd, data) == len(data):
            self._is_sound = True

    def _cut(self, step: int) -> None:
        """Cut the file before the first line that is incomplete or of a later step."""
        self._told, end, is_kept = {}, 0, True
        if self._path.exists():
            with self._path.open("rb+") as file:
                for line in file:
                    values = _parse(line)
                    if values.get("firstSteps"):
                        self.first_steps = _first_steps(values) or self.first_steps
                    is_kept = is_kept and "kind" in values and values["step"] <= step
                    if is_kept:
                        self._told[values["kind"]] = values["step"]
                        end += len(line)
                if end < file.seek(0, os.SEEK_END):
                    file.truncate(end)
        self._is_sound = True

    def _survive(self, action: Callable[[], None]) -> None:
        if not self._errors.attempt(action):
            self._is_sound = False


def _first_steps(values: dict[str, Any]) -> tuple[Resumption, ...]:
    with suppress(ValueError):  # anybody may have written the file
        return from_json(_Start, json.dumps(values)).first_steps[-_MOST_FIRST_STEPS:]
    return ()


def _parse(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line) if line.endswith(b"\n") else {}
        return {**values, "kind": str(values["kind"]), "step": int(values["step"])}
    except (ValueError, KeyError, TypeError):
        return {}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinity by None: JSON does not have them."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }
