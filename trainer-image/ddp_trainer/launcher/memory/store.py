"""The snapshot files of a pod: which there are, how they are read, received and released.

The volume is in memory and belongs to the pod's ranks too. Ranks write only below `own`, and take
only the file `free` there, so a snapshot never changes while it is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ddp_trainer.launcher.memory.checksums import checksum_of
from ddp_trainer.memory.volume import FREE, PART, SLOTS, SnapshotName, Volume

_PART_SUFFIX = ".part"
_MOST_FILES = 1000
"""Entries of a folder to read: ranks could create any number."""


class NoRoomError(Exception):
    """A snapshot does not fit; the text says why."""


class WrongPieceError(Exception):
    """A piece of a snapshot does not continue what is here."""


@dataclass(frozen=True, kw_only=True)
class File:
    """A whole snapshot."""

    path: Path
    name: SnapshotName
    size: int
    """In bytes."""
    local_rank: int | None = None
    """The local rank that wrote it; None: it is from another pod."""
    checksum: int | None = None
    """Of a snapshot from another pod, when it arrived; None: not known."""


@dataclass(kw_only=True)
class _Part:
    """A snapshot that is being received."""

    path: Path
    total: int
    received: int = 0
    checksum: int = 0
    """Of the received bytes."""


class Store:
    """The files of one pod. Thread-safe."""

    def __init__(self, volume: Volume) -> None:
        """Create the folders, and remove what an earlier launcher received in part.

        Raises:
            OSError: the volume cannot be written.
        """
        self._volume = volume
        self.lock = threading.RLock()
        """Held while files are listed, opened or released."""
        self._readers: Counter[Path] = Counter()
        self._parts: dict[SnapshotName, _Part] = {}
        self._checksums: dict[SnapshotName, int] = {}
        for folder in (volume.received, volume.restored):
            folder.mkdir(parents=True, exist_ok=True)
            for path in _entries(folder):
                if path.name.endswith(_PART_SUFFIX):
                    path.unlink()

    def files(self) -> Sequence[File]:
        """Return all whole snapshots."""
        folders: list[tuple[Path, int | None]] = [
            *((folder, int(folder.name)) for folder in self._own_folders()),
            (self._volume.received, None),
            (self._volume.restored, None),
        ]
        with self.lock:
            return [
                File(
                    path=path,
                    name=name,
                    size=status.st_size,
                    local_rank=local_rank,
                    checksum=self._checksums.get(name) if local_rank is None else None,
                )
                for folder, local_rank in folders
                for path in _entries(folder)
                if (name := SnapshotName.parse(path.name)) and (status := _regular(path))
            ]

    def drop_damaged(self, name: SnapshotName) -> bool:
        """Release a snapshot from another pod if it has changed since it arrived; return True then.

        Raises:
            OSError: it cannot be read.
        """
        file = self.find(name)
        if file is None or file.checksum is None:
            return False
        with self.opened(file) as descriptor:
            if checksum_of(descriptor, size=file.size) == file.checksum:
                return False
        self.drop(lambda one: one == name, only_of_other_pods=True)
        return True

    def find(self, name: SnapshotName) -> File | None:
        """Return a snapshot if it is here."""
        return next((file for file in self.files() if file.name == name), None)

    def _own_folders(self) -> list[Path]:
        folders = _entries(self._volume.directory / "own")
        return [folder for folder in folders if folder.name.isdecimal() and not folder.is_symlink()]

    def drop(
        self, unwanted: Callable[[SnapshotName], bool], *, only_of_other_pods: bool = False
    ) -> None:
        """Release snapshots, and those that are received; a rank may use the memory again."""
        with self.lock:
            for name in [name for name in self._parts if unwanted(name)]:
                self._parts.pop(name).path.unlink(missing_ok=True)
            for file in self.files():
                if unwanted(file.name) and not (only_of_other_pods and file.local_rank is not None):
                    self._release(file)

    def _release(self, file: File) -> None:
        free = file.path.with_name(FREE)
        if file.local_rank is None:
            self._checksums.pop(file.name, None)
        with contextlib.suppress(FileNotFoundError):
            # A rank would write to the file while it is read.
            if file.local_rank is None or self._readers[file.path] or free.exists():
                file.path.unlink()
            else:
                file.path.rename(free)

    def keep_for_others(self, file: File) -> None:
        """Move an own snapshot to the copies, so that the rank has room for another one."""
        with self.lock, contextlib.suppress(FileNotFoundError):
            file.path.rename(self._volume.received / file.path.name)

    def keep_for_rank(self, file: File) -> Path:
        """Move a copy to the snapshots of this pod's ranks, so that copies have room for another
        one; return its path.
        """
        with self.lock:
            if file.path.parent != self._volume.received:
                return file.path
            return file.path.rename(self._volume.restored / file.path.name)

    def reclaim(self) -> None:
        """Release what ranks were writing when they ended."""
        for folder in self._own_folders():
            part, free = folder / PART, folder / FREE
            with contextlib.suppress(FileNotFoundError):
                if free.exists():
                    part.unlink()
                else:
                    part.rename(free)

    @contextmanager
    def opened(self, file: File) -> Iterator[int]:
        """Open a snapshot; its content stays the same even if it is released meanwhile.

        Raises:
            OSError: it does not exist any more.
        """
        with self.lock:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._readers[file.path] += 1
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            with self.lock:
                self._readers -= Counter([file.path])  # without entries of 0

    def receive(
        self,
        name: SnapshotName,
        piece: bytes,
        *,
        offset: int,
        total: int,
        restored: bool = False,
        may_take_all: bool = False,
    ) -> int:
        """Write a piece of a snapshot; the last one makes it whole.

        `restored`: it is for a rank of this pod.
        `may_take_all`: copies of its step may take the room of the next step, because others of
        them will be released for it.

        Returns:
            The number of bytes that are here. The next piece begins there.

        Raises:
            NoRoomError: it does not fit.
            WrongPieceError: earlier pieces are missing, or it is no longer wanted.
            OSError: it cannot be written.
        """
        with self.lock:
            if self.find(name):
                return total
            part = self._parts.get(name)
            if part is None and offset:
                raise WrongPieceError("the next piece begins at 0")
            if part is None:
                if not restored:
                    self._check_share(name, total, may_take_all=may_take_all)
                part = self._begin(name, total, restored=restored)
            if offset > part.received or total != part.total or offset + len(piece) > total:
                raise WrongPieceError(f"the next piece begins at {part.received} of {part.total}")
        self._write(name, part, piece, offset, may_take_free=restored)
        with self.lock:
            if self._parts.get(name) is not part:
                raise WrongPieceError("the snapshot was released")
            part.checksum = zlib.crc32(piece[part.received - offset :], part.checksum)
            part.received = max(part.received, offset + len(piece))
            if part.received == total:
                self._checksums[name] = part.checksum
                part.path.rename(part.path.with_name(str(name)))
                del self._parts[name]
            return part.received

    def _begin(self, name: SnapshotName, total: int, *, restored: bool) -> _Part:
        folder = self._volume.restored if restored else self._volume.received
        part = _Part(path=folder / f"{name}{_PART_SUFFIX}", total=total)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(part.path, flags, 0o600))
        self._parts[name] = part
        return part

    def _check_share(self, name: SnapshotName, total: int, *, may_take_all: bool) -> None:
        files = [file for file in self.files() if file.path.parent == self._volume.received]
        sizes = {one: part.total for one, part in self._parts.items()}
        sizes |= {file.name: file.size for file in files}
        of_rank = sum(one.rank == name.rank for one in sizes)
        if of_rank >= SLOTS:
            raise NoRoomError(f"{of_rank} snapshots of rank {name.rank} are here already")
        share = self._volume.size * self._volume.copies // (1 + self._volume.copies)
        of_step = sum(size for one, size in sizes.items() if one.key == name.key)
        # Copies of a step must leave room for the next one.
        of_step_fits = may_take_all or of_step + total <= share // SLOTS
        if sum(sizes.values()) + total > share or not of_step_fits:
            raise NoRoomError(f"{share} bytes for copies are too few: raise sizeLimit")

    def _write(
        self, name: SnapshotName, part: _Part, piece: bytes, offset: int, *, may_take_free: bool
    ) -> None:
        descriptor = os.open(part.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while piece:
                try:
                    written = os.pwrite(descriptor, piece, offset)
                    piece, offset = piece[written:], offset + written
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    if not (may_take_free and self._remove_free()):
                        self.drop(lambda one: one == name, only_of_other_pods=True)
                        raise NoRoomError("the volume is full: raise sizeLimit") from error
        finally:
            os.close(descriptor)

    def _remove_free(self) -> bool:
        """Return memory that ranks could use again; False if there was none."""
        found = [path for folder in self._own_folders() if (path := folder / FREE).exists()]
        for path in found:
            path.unlink(missing_ok=True)
        return bool(found)


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in islice(entries, _MOST_FILES)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _regular(path: Path) -> os.stat_result | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
