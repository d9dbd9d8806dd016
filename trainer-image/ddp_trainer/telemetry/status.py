"""The status of a training as a small JSON document, and the file that passes it to the launcher.

The launcher serves the file's content, so it can answer even while the training hangs. A script
can report its status by writing the same JSON to the file that DDP_STATUS_FILE names.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddp_protocol.message import from_json, to_json
from ddp_protocol.progress import TrainerStatus

STATUS_FILE_VARIABLE = "DDP_STATUS_FILE"
"""Path of the file."""
_PREFIX = "ddp-launcher-"
"""Of folders with a status file; older launchers use `ddp-status-`, without a lock."""
MAX_BYTES = 64 * 1024
"""Limit for readers, which may poll many jobs."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Measurements of the bundled trainer, counted since its first process in this pod."""

    step_seconds: float
    """Sum over all steps; a repeated step counts again."""
    step_counts: tuple[int, ...]
    """Steps by duration, one number for each of `histogram.BOUNDS` and one for longer ones."""
    phase_seconds: Mapping[str, float]
    reforms: int
    """Number of times that the group was formed again."""
    reform_seconds: float
    """Total time from noticing the loss of a rank until training could continue."""
    straggler_ratio: float | None = None
    """Own time per step of a straggler, divided by the mean of the others; None: no straggler."""


@dataclass(frozen=True, kw_only=True)
class Status(TrainerStatus):
    """The status of a training. None: unknown."""

    slowest_rank: int | None = None
    """A rank that holds the others up."""
    metrics: Mapping[str, float] | None = None
    """A script's own metrics, the newest value of each name."""
    finished: bool | None = None
    """Set by a script at its end: true if all ranks of this pod have trained and saved everything.
    """
    measurements: Measurements | None = None


class StatusFile:
    """Reads and writes the status file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> StatusFile | None:
        """Return the file that DDP_STATUS_FILE names; None if it is not set."""
        path = env.get(STATUS_FILE_VARIABLE)
        return cls(Path(path)) if path else None

    def write(self, status: Status) -> None:
        """Replace the document; readers see the old or the new one, never a part.

        Raises:
            OSError: it cannot be written; then the old one is removed if possible.
        """
        try:
            replace_file(self._path, to_json(status))
        except OSError:
            # A step that no longer changes would look like a hang.
            with contextlib.suppress(OSError):
                self.remove()
            raise

    def remove(self) -> None:
        """Remove the file.

        Raises:
            OSError: it cannot be removed.
        """
        self._path.unlink(missing_ok=True)

    def read(self) -> Status | None:
        """Return the newest status; None: there is none yet.

        Raises:
            ValueError: the file is not a valid status; the message says why.
            OSError: the file cannot be read.
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
    """Replace a file atomically: readers see the old or the new text, never a part.

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


def predecessor(file: StatusFile | None) -> Status:
    """Return the status of the previous rank 0; an empty one with step 0 if there was none."""
    try:
        status = file.read() if file is not None else None
    except (OSError, ValueError) as error:
        _logger.warning("cannot read the status of the previous rank 0: %s", error)
        status = None
    return status or Status(step=0)


@contextmanager
def status_file(env: Mapping[str, str]) -> Iterator[Path | None]:
    """Yield the path for the ranks' status: the user's choice, or a file in memory.

    Yields None if it cannot be written, and logs that.
    """
    if env.get(STATUS_FILE_VARIABLE):
        path = Path(env[STATUS_FILE_VARIABLE])
        try:
            path.unlink(missing_ok=True)  # a file of an earlier launcher is outdated
        except OSError as error:
            _logger.warning("cannot remove an old status file; no status is served: %s", error)
            yield None
        else:
            yield path
        return
    try:
        folder, lock = _locked_folder(_directory())
    except OSError as error:
        _logger.warning("cannot create a status file; no status is served: %s", error)
        yield None
        return
    try:
        yield folder / "status.json"
    finally:
        # An orphan of a script may still write to it.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    """Create a folder, and remove those of launchers that were killed.

    A launcher locks its folder before it has the prefix, so a folder with the prefix and without a
    lock is of no live launcher. The kernel releases the lock of a process that is killed.

    Returns:
        The folder, and a file descriptor that holds its lock.

    Raises:
        OSError: it cannot be created.
    """
    for each in parent.glob(f"{_PREFIX}*"):
        # It may be locked, of another user, or removed by another launcher meanwhile.
        with contextlib.suppress(OSError):
            lock = _lock(each)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=".ddp-", dir=parent))
    lock = _lock(folder)
    return folder.rename(parent / f"{_PREFIX}{folder.name.removeprefix('.ddp-')}"), lock


def _lock(folder: Path) -> int:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _directory() -> Path:
    """Return a directory in memory if possible, so that no slow disk delays a rank."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir="/dev/shm"):
        return Path("/dev/shm")
    return Path(tempfile.gettempdir())
