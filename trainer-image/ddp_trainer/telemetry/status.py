"""How a training goes, as one small JSON document, and the file that carries it to the launcher.

The launcher serves what the file says, so that a training that hangs can still be asked. A script
joins in by writing the same JSON to the file that DDP_STATUS_FILE names.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddp_trainer.telemetry.wire import from_json, to_json

STATUS_FILE_VARIABLE = "DDP_STATUS_FILE"
"""Names the file."""
MAX_BYTES = 64 * 1024
"""Whoever polls many jobs reads no more."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CheckpointStatus:
    """The newest complete checkpoint."""

    step: int
    path: str | None = None
    time: str | None = None
    """When it was complete: UTC, as in 2026-11-21T03:00:00Z."""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """Where a group began to train."""

    step: int
    time: str
    """When it formed: UTC, as in 2026-11-21T03:00:00.250Z."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What only the bundled trainer measures; counted since its first process in this pod began."""

    step_seconds: float
    """Of all steps together; a step that was repeated counts again."""
    step_counts: tuple[int, ...]
    """Steps by duration, one number for each of `histogram.BOUNDS` and one for longer ones."""
    phase_seconds: Mapping[str, float]
    reforms: int
    """How often the group was formed anew."""
    reform_seconds: float
    """From noticing the loss of a rank to the first step that could follow."""
    straggler_ratio: float | None = None
    """The slowest rank's own time by the mean of the others', where that is worth a word."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a training goes. None: not known."""

    step: int
    """Optimizer steps completed since the beginning of training."""
    last_step_time: str | None = None
    """When a step was last completed, whichever it was: UTC, as in 2026-11-21T03:00:00.250Z.

    From a failure until then no training went on, whatever else did.
    """
    total_steps: int | None = None
    epoch: int | None = None
    """The one under way, counted from 1."""
    loss: float | None = None
    samples_per_second: float | None = None
    slowest_rank: int | None = None
    """A rank that holds the others up."""
    metrics: Mapping[str, float] | None = None
    """A script's own numbers, the newest of each name."""
    checkpoint: CheckpointStatus | None = None
    resumed: Resumption | None = None
    """Of the present group: what was trained beyond that step before is trained again."""
    finished: bool | None = None
    """A script's last word: whether all ranks of this pod have trained and saved everything."""
    measurements: Measurements | None = None


class StatusFile:
    """The file, as whoever writes it and whoever reads it see it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> StatusFile | None:
        """The file that a launcher asked for; None where nobody did."""
        path = env.get(STATUS_FILE_VARIABLE)
        return cls(Path(path)) if path else None

    def write(self, status: Status) -> None:
        """Replace the document; a reader sees the old one or the new one, never a part.

        Raises:
            OSError: it cannot be written; there is none then, as far as that can be had.
        """
        try:
            replace_file(self._path, to_json(status))
        except OSError:
            # A step that stands still would pass for a training that hangs.
            with contextlib.suppress(OSError):
                self.remove()
            raise

    def remove(self) -> None:
        """Take it back: there is none then.

        Raises:
            OSError: it is still there.
        """
        self._path.unlink(missing_ok=True)

    def read(self) -> Status | None:
        """The newest document; None as long as there is none.

        Raises:
            ValueError: what was written is no status; the message says why.
            OSError: it cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(text) > MAX_BYTES:
            raise ValueError(f"it is longer than {MAX_BYTES} bytes")
        return from_json(Status, text)


def replace_file(path: Path, text: str) -> None:
    """Write a file that readers see as it was or as it is now, never a part of it.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.next")
    try:
        new.write_text(text)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


@contextmanager
def status_file(env: Mapping[str, str]) -> Iterator[Path | None]:
    """Where ranks are to write their status: the user's choice, or a file in memory.

    None where nothing can be written, which is logged.
    """
    if env.get(STATUS_FILE_VARIABLE):
        path = Path(env[STATUS_FILE_VARIABLE])
        try:
            path.unlink(missing_ok=True)  # an earlier launcher's: it says nothing of these ranks
        except OSError as error:
            _logger.warning("cannot remove an old status, and serve none: %s", error)
            yield None
        else:
            yield path
        return
    try:
        temporary = tempfile.TemporaryDirectory(
            prefix="ddp-status-",
            dir=_directory(),
            ignore_cleanup_errors=True,  # an orphan of a script may still write to it
        )
    except OSError as error:
        _logger.warning("cannot keep a status, and serve none: %s", error)
        yield None
        return
    with temporary as directory:
        yield Path(directory, "status.json")


def _directory() -> str:
    """In memory where that can be had, so that no disk can hold a rank up."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir="/dev/shm"):
        return "/dev/shm"
    return tempfile.gettempdir()
