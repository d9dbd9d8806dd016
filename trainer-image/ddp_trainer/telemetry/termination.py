"""The last word of a pod: a JSON line that Kubernetes keeps as its termination message.

Each rank keeps its own report up to date in a file that it inherits from the launcher; the launcher
alone writes the pod's. A rank that dies without warning thus still tells how far it had come.
Behind the report in the same file stand its newest step, its pulse, and how long that may stand
still, by which the launcher knows a frozen process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddp_trainer.telemetry.status import CheckpointStatus
from ddp_trainer.telemetry.wire import from_json, to_json

REPORT_FD_VARIABLE = "DDP_REPORT_FD"
"""Names the inherited file descriptor that a rank reports to."""

_LIMIT_BYTES = 4096
"""Kubernetes cuts a container's termination message at 4096 bytes."""
_MAX_ERROR_CHARACTERS = 600
"""Leaves room for the rest, even if JSON needs six bytes for each. What a rank printed is bounded
in bytes, of which JSON needs two for each."""
_DEFAULT_PATH = Path("/dev/termination-log")
"""Where the kubelet mounts the file of the termination message unless the pod says otherwise."""

_NUMBER = struct.Struct("<q")
_STEP_OFFSET = _LIMIT_BYTES
_PULSE_OFFSET = _STEP_OFFSET + _NUMBER.size
_TIMEOUT_OFFSET = _PULSE_OFFSET + _NUMBER.size

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TerminationReport:
    """What is known of a rank's run. None: not known, or it did not come to that."""

    step: int | None = None
    """Optimizer steps completed since the beginning of training."""
    total_steps: int | None = None
    loss: float | None = None
    """Mean over ranks at the last logged step."""
    accuracy: float | None = None
    """On the whole test set, 0 to 1."""
    checkpoint: CheckpointStatus | None = None
    error: str | None = None
    printed: bool | None = None
    """True: the rank gave no error; that one goes on, after its first line, with what it printed
    last."""
    exit_code: int | None = None
    rank: int | None = None
    finished: bool | None = None
    """Whether all is trained and saved: what happens to the rank afterwards changes nothing.

    False: not yet, and another process may take the rank's place. None: nobody said.
    """
    left: bool | None = None
    """True: the pod had no place in the group any more; the others train on without the rank."""

    def to_json(self) -> str:
        """One line that fits a termination message; keys in camel case, unknown values left out."""
        if self.error is None or self.printed:
            return to_json(self)
        return to_json(replace(self, error=self.error[:_MAX_ERROR_CHARACTERS]))

    @property
    def headline(self) -> str:
        """The error in one line, for a log that has the rest; empty: there is none."""
        return next(iter((self.error or "").splitlines()), "")

    @classmethod
    def from_json(cls, text: str) -> TerminationReport:
        """Read what `to_json` wrote.

        Raises:
            ValueError: the text is no report, or only a part of one.
        """
        return from_json(cls, text)


class RankReport:
    """A rank's end of the hand-over; does nothing where no launcher listens."""

    def __init__(self, env: Mapping[str, str], *, rank: int | None = None) -> None:
        fd = env.get(REPORT_FD_VARIABLE)
        self._fd = int(fd) if fd else None
        self.known = TerminationReport(rank=rank)
        """The newest report."""

    def update(self, **changes: Any) -> None:
        """Set fields of the report, which replaces the one before."""
        self.known = replace(self.known, **changes)
        if self._fd is not None:
            # One write of constant length: a reader never sees the end of an older report.
            line = self.known.to_json().encode(errors="replace").ljust(_LIMIT_BYTES)
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, line, 0)

    def step(self, step: int) -> None:
        """Set the step, which is so frequent that it has a place of its own in the file."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, _NUMBER.pack(step), _STEP_OFFSET)

    def start_pulse(self, interval_seconds: float, *, timeout_seconds: float) -> None:
        """Tell the launcher from a thread, now and then, that this process runs.

        After so long without a sign of life it counts as frozen.
        """
        if self._fd is not None:
            os.pwrite(self._fd, _NUMBER.pack(round(timeout_seconds * 1000)), _TIMEOUT_OFFSET)
            threading.Thread(
                target=self._beat, args=(self._fd, interval_seconds), name="pulse", daemon=True
            ).start()

    @staticmethod
    def _beat(fd: int, interval_seconds: float) -> None:
        for count in itertools.count(1):
            os.pwrite(fd, _NUMBER.pack(count), _PULSE_OFFSET)
            time.sleep(interval_seconds)


def open_report_file() -> int:
    """A file for one rank's report, in memory: the pod's file system may be read-only."""
    return os.memfd_create("rank-report")


def read_report_file(fd: int) -> TerminationReport:
    """What the rank wrote last; an empty report if it wrote nothing."""
    try:
        report = TerminationReport.from_json(os.pread(fd, _LIMIT_BYTES, 0).decode())
    except ValueError:
        report = TerminationReport()
    return replace(report, step=_read_number(fd, _STEP_OFFSET) or report.step)


def read_pulse(fd: int) -> int:
    """A number that grows as long as the rank's process runs; 0 before its first beat."""
    return _read_number(fd, _PULSE_OFFSET)


def read_timeout(fd: int) -> float:
    """Seconds without a sign of life after which a rank is frozen; 0 where it has not said."""
    return _read_number(fd, _TIMEOUT_OFFSET) / 1000


def _read_number(fd: int, offset: int) -> int:
    """0 where nothing was written."""
    data = os.pread(fd, _NUMBER.size, offset)
    return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else 0


def write_termination_message(report: TerminationReport, env: Mapping[str, str]) -> None:
    """Write the pod's report to DDP_TERMINATION_LOG, or where the kubelet reads it.

    Outside Kubernetes the default file does not exist, and nothing is written.
    """
    chosen = env.get("DDP_TERMINATION_LOG")
    path = Path(chosen) if chosen else _DEFAULT_PATH
    if chosen is None and not path.exists():
        return
    try:
        path.write_bytes((report.to_json() + "\n").encode(errors="replace"))
    except OSError as error:
        _logger.warning("cannot write the termination message to %s: %s", path, error)
