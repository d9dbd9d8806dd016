"""The files to which a rank copies its state, mapped into its memory.

A rank writes to the same two or three files in turn. They stay mapped, because the kernel takes
longer to map the pages of a file than to copy to them.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
from pathlib import Path

import torch

_BLOCK_BYTES = 512
"""Unit of st_blocks."""

_logger = logging.getLogger(__name__)


class MappedFile:
    """One file in memory."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(descriptor, size)
        self.memory.madvise(mmap.MADV_DONTFORK)  # a child would keep the memory of a removed file
        self.tensor = torch.frombuffer(self.memory, dtype=torch.uint8)
        """The whole file."""
        self._is_locked: bool | None = None

    def lock_pages(self) -> None:
        """Let a GPU copy to the file at full speed, if CUDA can lock its pages."""
        if self._is_locked is not None:
            return
        self._is_locked = False
        try:
            from ddp_trainer.devices.page_locked import lock_pages  # noqa: PLC0415 - needs numpy

            lock_pages(self.tensor.data_ptr(), self.size)
            self._is_locked = True
        except (ImportError, RuntimeError) as error:
            _logger.warning("CUDA cannot lock a snapshot's pages, so saving is slower: %s", error)

    def close(self) -> None:
        """Release the memory; no tensor may refer to it any more."""
        if self._is_locked:
            from ddp_trainer.devices.page_locked import unlock_pages  # noqa: PLC0415

            unlock_pages(self.tensor.data_ptr())
        del self.tensor
        with contextlib.suppress(BufferError):  # freed when the last tensor is
            self.memory.close()


class MappedFiles:
    """The files of one folder that this process has mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, MappedFile] = {}
        """By inode: the launcher renames them."""

    def open(self, path: Path, size: int) -> MappedFile:
        """Open or create a file of this folder, and allocate `size` bytes for it.

        Raises:
            OSError: it cannot be written, or there is not enough memory (ENOSPC).
        """
        self._close_removed()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            status = os.fstat(descriptor)
            known = self._files.get(status.st_ino)
            if known is not None and known.size != size:
                self._files.pop(status.st_ino).close()
                known = None
            if status.st_size != size:
                os.ftruncate(descriptor, size)
            if os.fstat(descriptor).st_blocks * _BLOCK_BYTES < size:
                # Otherwise a full volume would end the process at the first write (SIGBUS).
                os.posix_fallocate(descriptor, 0, size)
            if known is None:
                known = self._files[status.st_ino] = MappedFile(descriptor, size)
            return known
        finally:
            os.close(descriptor)

    def _close_removed(self) -> None:
        """Release files that the launcher has removed; they take memory while they are mapped."""
        with os.scandir(self._folder) as entries:
            present = {entry.inode() for entry in entries}
        for inode in self._files.keys() - present:
            self._files.pop(inode).close()
