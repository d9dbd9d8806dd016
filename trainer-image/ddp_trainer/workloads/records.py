"""Very many small files as one: a folder packed into an LMDB, and its files read by number.

On a network mount each small file costs a round trip, and again in every epoch. A workload's module
that says `stage = pack` has a folder packed once into a node's own storage, from where `Records`
reads a file for no more than a look into memory that all ranks of the node share.

    from ddp_trainer.workloads.records import Records, pack

    stage = pack

    def load(*, data: Path) -> Workload:
        samples = MapSamples(Records(data), collate=to_tensors)  # of pairs (path, bytes)
        ...
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch.utils.data import Dataset

from ddp_trainer.exit_codes import ConfigurationError

try:
    import lmdb
except ModuleNotFoundError as error:
    raise ConfigurationError(
        "packed records need lmdb: install ddp-trainer[lmdb] in the image"
    ) from error

_FILES_AT_ONCE = 32
"""How many files are read beside each other, so that their round trips take the time of one."""
_FIRST_MAP_BYTES = 1 << 20
"""Where the limit of an LMDB's size begins; it doubles as often as need be."""
_PATHS = b"\0"
"""The key, unlike any path's and before them all, of all other keys, with `_BETWEEN` between them.

Walking over the keys themselves would read most of the file: LMDB looks at each large value.
"""
_BETWEEN = b"\0"


def pack(source: Path, target: Path) -> None:
    """Write all files below the folder `source` into the LMDB file `target`.

    A key is a path relative to `source`, in the order of bytes; its value is the file's content.
    Links to files are followed. A `source` that is a file has been packed before and is copied.
    All paths are held in memory, and `_FILES_AT_ONCE` files, twice.

    Raises:
        ConfigurationError: there is no file, or something that cannot be packed.
        OSError: it could not be read or written.
    """
    if source.is_file():
        shutil.copyfile(source, target)
        return
    keys = sorted(os.fsencode(os.path.relpath(path, source)) for path in _files(source))
    if not keys:
        raise ConfigurationError(
            f"--data {source} has no files to pack: mount what should be there, or correct it"
        )
    try:
        _pack(source, keys, target)
    except lmdb.Error as error:
        raise OSError(f"{target} could not be written, is the disk full? {error}") from error


class Records(Dataset[tuple[str, bytes]]):
    """The files of a packed folder: index → (relative path, content), in the order of paths.

    It may be passed on to other processes, forked or not: each opens the file for itself.
    """

    def __init__(self, path: Path) -> None:
        """Read the paths of all files, and no content.

        Raises:
            ConfigurationError: `path` is not what `pack` writes.
        """
        self._path = path.resolve()
        try:
            with _environment(self._path).begin() as transaction:
                paths = transaction.get(_PATHS)
                if paths is None:
                    raise lmdb.Error("something else made this LMDB")
        except lmdb.Error as error:
            raise ConfigurationError(
                f"--data {path} is not a packed folder ({error}): let --stage copy or --stage "
                "broadcast pack it"
            ) from error
        self.paths = [os.fsdecode(key) for key in paths.split(_BETWEEN)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, bytes]:
        path = self.paths[index]
        with _environment(self._path).begin() as transaction:
            content = transaction.get(os.fsencode(path))
        assert content is not None, f"{self._path} has changed while it was read"
        return path, content


@functools.cache
def _environment(path: Path) -> lmdb.Environment:
    # One for all users in a process: LMDB does not allow a second.
    return lmdb.open(str(path), readonly=True, create=False, subdir=False, lock=False)


# Nor does it allow one that was opened before a fork.
os.register_at_fork(after_in_child=_environment.cache_clear)


def _files(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            elif entry.is_file():
                yield entry.path
            else:  # links to folders may lead in circles, and reading a pipe never ends
                raise ConfigurationError(
                    f"{entry.path} cannot be packed, which takes files, links to files, and "
                    "folders: remove it, or put a file or a folder in its place"
                )


def _pack(source: Path, keys: list[bytes], target: Path) -> None:
    def read(key: bytes) -> tuple[bytes, bytes]:
        return key, (source / os.fsdecode(key)).read_bytes()

    # Nobody else knows of the file yet, and half of it is worth nothing: neither locks nor a disk
    # that confirms each transaction.
    with (
        lmdb.open(
            str(target), map_size=_FIRST_MAP_BYTES, subdir=False, lock=False, sync=False
        ) as environment,
        ThreadPoolExecutor(_FILES_AT_ONCE) as threads,
    ):
        _write(environment, [(_PATHS, _BETWEEN.join(keys))])
        for first in range(0, len(keys), _FILES_AT_ONCE):
            _write(environment, list(threads.map(read, keys[first : first + _FILES_AT_ONCE])))
        environment.sync(True)


def _write(environment: lmdb.Environment, records: list[tuple[bytes, bytes]]) -> None:
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for key, content in records:
                    _put(transaction, key, content)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])


def _put(transaction: lmdb.Transaction, key: bytes, content: bytes) -> None:
    try:
        transaction.put(key, content, append=True)
    except lmdb.BadValsizeError as error:
        raise ConfigurationError(
            f"{os.fsdecode(key)} cannot be packed: its path may have up to 511 bytes, and it less "
            "than 4 GiB"
        ) from error
