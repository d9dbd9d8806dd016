"""Writes and checks files on any mounted file system: disks, network shares, object stores.

A mounted object store may support neither fsync nor rename, and may store a file only when it is
closed. So this module only relies on reading back a file to know that it was written.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ddp_trainer.system.buffers import allocate

_CHUNK_BYTES = 4 * 2**20
"""Bytes between checks for a cancellation; large, so that system calls cost little."""
_SYNC_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})
"""Errors of file systems without fsync; a full or broken disk returns others."""


class CancelledError(Exception):
    """The transfer was cancelled."""


class Transfer:
    """The progress of a save, which another thread can cancel."""

    def __init__(self, total_bytes: int) -> None:
        """`total_bytes`: approximate bytes to transfer."""
        self._total_bytes = max(total_bytes, 1)
        self._done_bytes = 0
        self._cancelled = False

    @property
    def fraction(self) -> float:
        """Return the progress, from 0 to 1."""
        return min(self._done_bytes / self._total_bytes, 1.0)

    def cancel(self) -> None:
        """Make the transfer end with `CancelledError` at its next check."""
        self._cancelled = True

    def check(self) -> None:
        """Raise `CancelledError` if the transfer was cancelled."""
        if self._cancelled:
            raise CancelledError("cancelled")

    def advance(self, count: int) -> None:
        """Count transferred bytes."""
        self.check()
        self._done_bytes += count


@dataclass(frozen=True, kw_only=True)
class Content:
    """The size and hash of a file."""

    size: int
    sha256: str


class Recorder:
    """A writable file that counts and hashes the bytes."""

    def __init__(self, file: BinaryIO, transfer: Transfer) -> None:
        self._file = file
        self._transfer = transfer
        self._hash = hashlib.sha256()
        self._size = 0
        self.failure: OSError | CancelledError | None = None
        """The first error of a write; torch.save replaces it by its own errors."""

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`."""
        view = memoryview(data)
        for first in range(0, len(view), _CHUNK_BYTES):
            self._write(view[first : first + _CHUNK_BYTES])
        return len(view)

    def _write(self, chunk: memoryview) -> None:
        try:
            self._file.write(chunk)
            self._transfer.advance(len(chunk))
        except (OSError, CancelledError) as error:
            if isinstance(error, OSError):
                error.filename = error.filename or self._file.name
            self.failure = self.failure or error
            raise
        self._hash.update(chunk)
        self._size += len(chunk)

    def flush(self) -> None:
        """Flush buffered data to the kernel."""
        self._file.flush()

    @property
    def content(self) -> Content:
        """Return size and hash of the data written so far."""
        return Content(size=self._size, sha256=self._hash.hexdigest())


def write_file(path: Path, produce: Callable[[Recorder], object], transfer: Transfer) -> Content:
    """Write a file sequentially; return size and hash after it is synced and closed.

    Raises:
        OSError: it could not be written.
        CancelledError: the transfer was cancelled.
    """
    with path.open("wb") as file:
        recorder = Recorder(file, transfer)
        try:
            produce(recorder)
        except Exception as error:
            raise (recorder.failure or error) from None
        file.flush()
        sync(file.fileno())
    return recorder.content


def read_content(path: Path, transfer: Transfer) -> Content:
    """Return size and hash of a file.

    Raises:
        OSError: it cannot be read.
        CancelledError: the transfer was cancelled.
    """
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            transfer.advance(len(chunk))
    return Content(size=size, sha256=digest.hexdigest())


def read_into_memory(path: Path, *, size: int) -> tuple[memoryview, Content]:
    """Return the first `size` bytes of a file, and size and hash of the whole file.

    Raises:
        OSError: it cannot be read.
    """
    memory = allocate(size)
    digest = hashlib.sha256()
    at = 0
    with path.open("rb", buffering=0) as file:
        while at < size and (count := file.readinto(memory[at : at + _CHUNK_BYTES])):
            digest.update(memory[at : at + count])
            at += count
        while chunk := file.read(_CHUNK_BYTES):  # more bytes than expected
            digest.update(chunk)
            at += len(chunk)
    return memory[: min(at, size)], Content(size=at, sha256=digest.hexdigest())


def sync(fd: int) -> None:
    """Wait until a file is on the disk, if the file system supports that.

    Raises:
        OSError: it could not be written to the disk.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _SYNC_UNKNOWN:
            raise


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fd)
    finally:
        os.close(fd)
