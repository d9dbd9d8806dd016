"""The final report of a pod: a JSON line that Kubernetes keeps as the termination message.

Each rank keeps its own report up to date in a file that it inherits from the launcher; only the
launcher writes the pod's report. So the step of a rank that dies without warning is still known.
After the report, the same file holds the rank's newest step, its pulse, and the pulse's timeout.
The launcher uses them to detect a frozen process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ddp_protocol.message import from_json, to_json
from ddp_protocol.progress import TrainingReport

REPORT_FD_VARIABLE = "DDP_REPORT_FD"
"""The inherited file descriptor for a rank's report."""

_LIMIT_BYTES = 4096
"""Kubernetes cuts a container's termination message at 4096 bytes."""
_MAX_ERROR_CHARACTERS = 600
"""Leaves room for the rest even if JSON needs six bytes per character. A rank's output is limited
in bytes; JSON needs at most two for each."""
_MAX_METRICS = 16
"""The operator keeps as many."""
_DEFAULT_PATH = Path("/dev/termination-log")
"""Where the kubelet mounts the file of the termination message unless the pod says otherwise."""

_NUMBER = struct.Struct("<q")
_STEP_OFFSET = _LIMIT_BYTES
_PULSE_OFFSET = _STEP_OFFSET + _NUMBER.size
_TIMEOUT_OFFSET = _PULSE_OFFSET + _NUMBER.size
_SIZE_BYTES = _TIMEOUT_OFFSET + _NUMBER.size

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TerminationReport(TrainingReport):
    """The report of a rank. None: unknown, or not reached."""

    error: str | None = None
    printed: bool | None = None
    """True: the rank reported no error itself; `error` contains its last output after the first
    line."""
    exit_code: int | None = None
    rank: int | None = None
    finished: bool | None = None
    """True: everything is trained and saved, so later failures of the rank do not matter.

    False: not yet, and another process may replace the rank. None: not reported.
    """
    left: bool | None = None
    """True: the pod is no longer in the group; the others continue without the rank."""
    dumps: bool | None = None
    """True: the pod shows dumps of its ranks' collectives, from before their end."""

    def to_json(self) -> str:
        """Return a line that fits a termination message: camelCase keys, no unknown values.

        It has only a few metrics, and none beside an error.
        """
        if self.error is None:
            few = dict(itertools.islice((self.metrics or {}).items(), _MAX_METRICS))
            return to_json(replace(self, metrics=few or None))
        error = self.error if self.printed else self.error[:_MAX_ERROR_CHARACTERS]
        return to_json(replace(self, error=error, metrics=None))

    @property
    def headline(self) -> str:
        """The first line of the error, for a log that has the rest; empty: no error."""
        return next(iter((self.error or "").splitlines()), "")

    @classmethod
    def from_json(cls, text: str) -> TerminationReport:
        """Parse the output of `to_json`.

        Raises:
            ValueError: the text is not a complete report.
        """
        return from_json(cls, text)


class RankReport:
    """Writes a rank's report for the launcher; does nothing without a launcher."""

    def __init__(self, env: Mapping[str, str], *, rank: int | None = None) -> None:
        fd = env.get(REPORT_FD_VARIABLE)
        self._fd = int(fd) if fd else None
        self.known = TerminationReport(rank=rank)
        """The newest report."""
        self.step: MutableSequence[int] = [0] if self._fd is None else _shared_step(self._fd)
        """Its only item is the newest step, which the launcher reads even if this process dies."""

    def update(self, **changes: Any) -> None:
        """Set fields of the report and write it."""
        self.known = replace(self.known, **changes)
        if self._fd is not None:
            # A single write of constant length: readers never see the rest of an older report.
            line = self.known.to_json().encode(errors="replace").ljust(_LIMIT_BYTES)
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, line, 0)

    def start_pulse(self, interval_seconds: float, *, timeout_seconds: float) -> None:
        """Start a thread that regularly tells the launcher that this process runs.

        `timeout_seconds`: without a sign of life for this long, the process counts as frozen.
        """
        if self._fd is not None:
            os.pwrite(self._fd, _NUMBER.pack(round(timeout_seconds * 1000)), _TIMEOUT_OFFSET)
            threading.Thread(
                target=self._beat,
                args=(self._fd, interval_seconds),
                name="ddp: shows that it runs",
                daemon=True,
            ).start()

    @staticmethod
    def _beat(fd: int, interval_seconds: float) -> None:
        for count in itertools.count(1):
            os.pwrite(fd, _NUMBER.pack(count), _PULSE_OFFSET)
            time.sleep(interval_seconds)


def _shared_step(fd: int) -> MutableSequence[int]:
    """Return the step in a report's file, in memory that is shared with the launcher."""
    if os.fstat(fd).st_size < _SIZE_BYTES:
        os.ftruncate(fd, _SIZE_BYTES)
    step = memoryview(mmap.mmap(fd, _SIZE_BYTES))[_STEP_OFFSET:_PULSE_OFFSET]
    return cast("MutableSequence[int]", step.cast("q"))


def open_report_file() -> int:
    """Create a file for a rank's report, in memory: the pod's file system may be read-only."""
    return os.memfd_create("rank-report")


def read_report_file(fd: int) -> TerminationReport:
    """Return the rank's last report; an empty one if it wrote none."""
    try:
        report = TerminationReport.from_json(os.pread(fd, _LIMIT_BYTES, 0).decode())
    except ValueError:
        report = TerminationReport()
    return replace(report, step=_read_number(fd, _STEP_OFFSET) or report.step)


def read_pulse(fd: int) -> int:
    """Return a number that grows while the rank's process runs; 0 before its first pulse."""
    return _read_number(fd, _PULSE_OFFSET)


def read_timeout(fd: int) -> float:
    """Return the seconds without a sign of life after which a rank is frozen; 0: not set."""
    return _read_number(fd, _TIMEOUT_OFFSET) / 1000


def _read_number(fd: int, offset: int) -> int:
    """Return a number from the file; 0 if it was never written."""
    data = os.pread(fd, _NUMBER.size, offset)
    return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else 0


def write_termination_message(message: str, env: Mapping[str, str]) -> None:
    """Write the pod's message to DDP_TERMINATION_LOG, or to the kubelet's default file.

    Outside Kubernetes the default file does not exist, and nothing is written.
    """
    chosen = env.get("DDP_TERMINATION_LOG")
    path = Path(chosen) if chosen else _DEFAULT_PATH
    if chosen is None and not path.exists():
        return
    try:
        path.write_bytes((message + "\n").encode(errors="replace"))
    except OSError as error:
        _logger.warning("cannot write the termination message to %s: %s", path, error)
