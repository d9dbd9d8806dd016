"""Writes and checks files on whatever is mounted: disks, network shares, object stores.

A mounted object store may know neither fsync nor rename, and may take a file only when it is
closed. So nothing here relies on more than that a file which can be read back has been written.
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
"""Between two looks whether to go on; large enough that system calls do not count."""
_SYNC_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})
"""What file systems answer that do not know fsync; a full or broken disk answers otherwise."""


class CancelledError(Exception):
    """Somebody called the transfer off."""


class Transfer:
    """How far a save has come, and the way to call it off from another thread."""

    def __init__(self, total_bytes: int) -> None:
        """`total_bytes` to be moved, about."""
        self._total_bytes = max(total_bytes, 1)
        self._done_bytes = 0
        self._cancelled = False

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return min(self._done_bytes / self._total_bytes, 1.0)

    def cancel(self) -> None:
        """Let it end with `CancelledError` when it looks next."""
        self._cancelled = True

    def check(self) -> None:
        """Raise `CancelledError` if it was called off."""
        if self._cancelled:
            raise CancelledError("called off")

    def advance(self, count: int) -> None:
        """Another `count` bytes are moved."""
        self.check()
        self._done_bytes += count


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a file holds."""

    size: int
    sha256: str


class Recorder:
    """A file to write to that counts and hashes what goes through it."""

    def __init__(self, file: BinaryIO, transfer: Transfer) -> None:
        self._file = file
        self._transfer = transfer
        self._hash = hashlib.sha256()
        self._size = 0
        self.failure: OSError | CancelledError | None = None
        """Why not all could be written; torch.save makes errors of its own out of it."""

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
        """Hand to the kernel what is buffered."""
        self._file.flush()

    @property
    def content(self) -> Content:
        """What was written so far."""
        return Content(size=self._size, sha256=self._hash.hexdigest())


def write_file(path: Path, produce: Callable[[Recorder], object], transfer: Transfer) -> Content:
    """Write a file from front to end; returns what was written once it is closed and synced.

    Raises:
        OSError: it could not be written.
        CancelledError: the transfer was called off.
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
    """What a file holds.

    Raises:
        OSError: it cannot be read.
        CancelledError: the transfer was called off.
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
    """The first `size` bytes of a file, and what all of it holds.

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
        while chunk := file.read(_CHUNK_BYTES):  # more than there should be
            digest.update(chunk)
            at += len(chunk)
    return memory[: min(at, size)], Content(size=at, sha256=digest.hexdigest())


def sync(fd: int) -> None:
    """Wait until a file is on the disk, as far as the file system knows of such a thing.

    Raises:
        OSError: it did not get there.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _SYNC_UNKNOWN:
            raise


def sync_directory(path: Path) -> None:
    """The same for the names in a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fd)
    finally:
        os.close(fd)
