"""Files of frozen weights beside the checkpoints: `frozen-<fingerprint>.pt`.

The fingerprint is the beginning of the file's SHA-256, so it covers names, shapes, dtypes and
bytes. The same weights make the same file, so a restarted job does not write it again. A file
counts only once a checkpoint's manifest refers to it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path

from ddp_trainer.checkpoints.frozen_weights import FrozenWeights
from ddp_trainer.checkpoints.manifest import DamagedError, FrozenFile
from ddp_trainer.checkpoints.storage import Transfer, read_content, sync_directory, write_file
from ddp_trainer.exit_codes import SupersededError

_LOOK_SECONDS = 0.05
"""Time between checks for a cancellation while a save waits for another one."""

_logger = logging.getLogger(__name__)


class FrozenFiles:
    """The files of one directory of checkpoints."""

    def __init__(self, root: Path, check: Callable[[], None]) -> None:
        """`check`: raises SupersededError once another process saves to `root`."""
        self._root = root
        self._check = check
        # A cancelled save may still be writing the file that the next save needs.
        self._lock = threading.Lock()
        self._verified: set[FrozenFile] = set()

    def store(self, weights: FrozenWeights, transfer: Transfer) -> FrozenFile:
        """Return the file of these weights; write it and read it back if it does not exist.

        Raises:
            OSError: it could not be written.
            DamagedError: it differs from what was written, or a weight changed meanwhile.
            CancelledError: the transfer was cancelled.
            SupersededError: another process saves here now.
        """
        while not self._lock.acquire(timeout=_LOOK_SECONDS):
            transfer.check()
        try:
            if weights.file is None or not self.is_complete(weights.file):
                weights.file = self._store(weights, transfer)
            return weights.file
        finally:
            self._lock.release()

    def trust(self, file: FrozenFile) -> None:
        """Do not read a file again; all of it was read, and its hash was right."""
        self._verified.add(file)

    def is_complete(self, file: FrozenFile) -> bool:
        """Return whether a file exists with the right size; its content is not read."""
        try:
            return (self._root / file.name).stat().st_size == file.size_bytes
        except OSError:
            return False

    def paths(self) -> list[Path]:
        """Return the paths of all files, including unfinished ones of killed processes."""
        return [path for path in self._root.iterdir() if FrozenFile.is_name(path.name)]

    def prune(self, needed: Container[str]) -> None:
        """Delete all files except those of the `needed` names.

        Raises:
            SupersededError: another process saves here now and may be writing a file.
        """
        for path in self.paths():
            if path.name in needed:
                continue
            self._check()
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _logger.warning("cannot delete %s: %s", path, error)

    def _store(self, weights: FrozenWeights, transfer: Transfer) -> FrozenFile:
        content = write_file(Path(os.devnull), weights.write, transfer)
        file = FrozenFile.of(content)
        path = self._root / file.name
        is_there = self.is_complete(file)
        if is_there and file not in self._verified:
            is_there = read_content(path, transfer) == content
        if is_there:
            weights.check()
        else:
            self._check()
            try:
                write_file(path, weights.write, transfer)
                sync_directory(self._root)
                weights.check()
                if read_content(path, transfer) != content:
                    raise DamagedError(f"{file.name} read back differs from what was written")
            except BaseException:
                with suppress(SupersededError, OSError):
                    self._check()  # by now the file may belong to another process
                    path.unlink(missing_ok=True)
                raise
        self.trust(file)
        return file
