"""Keeps the dumps that torch's flight recorder writes when a collective of NCCL times out.

torch then aborts the process, so the dump is all that still shows which rank did not come. From
torch 2.7 on it records and writes dumps by default. Here they get a folder of their own beside the
pod's status file.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path

from ddp_trainer.flight_recorder.dump import MAX_BYTES
from ddp_trainer.telemetry.requests.files import open_regular

_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""torch's names for the path to which it adds the rank: the present one, and an earlier one."""
_PREFIX = "rank_"
_NAME = re.compile(_PREFIX + r"(\d{1,6})")
_MOST_FILES = 1024
_RECENT_SECONDS = 600.0
"""Older dumps are of another incident, which the process has survived. torch may keep a process for
four minutes after its dump."""


def prepare(status_file: Path, env: Mapping[str, str]) -> Mapping[str, str]:
    """Make the folder, and return the variables that let ranks write their dumps there.

    Empty if the user has chosen another place, or if the folder cannot be made.
    """
    if any(env.get(name) for name in _VARIABLES):
        return {}
    folder = _folder(status_file)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return {}  # without dumps, training can continue
    return dict.fromkeys(_VARIABLES, str(folder / _PREFIX))


def clear(status_file: Path) -> None:
    """Remove the dumps of earlier processes."""
    with contextlib.suppress(OSError), _opened(status_file) as folder:
        for name in _names(folder):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)


def exist(status_file: Path, ranks: Collection[int]) -> bool:
    """Return True if one of these ranks, all that the pod has, has written a dump recently."""
    with contextlib.suppress(OSError), _opened(status_file) as folder:
        return any(_content(folder, name, most=1) for name in _of_ranks(folder, ranks).values())
    return False


def read(status_file: Path, ranks: Collection[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the recent dumps by rank; `ranks`: all that the pod has."""
    with contextlib.suppress(OSError), _opened(status_file) as folder:
        for rank, name in sorted(_of_ranks(folder, ranks).items()):
            if content := _content(folder, name, most=MAX_BYTES + 1):
                yield rank, content


def _folder(status_file: Path) -> Path:
    return status_file.with_name(f".{status_file.name}.dumps")


@contextlib.contextmanager
def _opened(status_file: Path) -> Iterator[int]:
    """Open the folder.

    Raises:
        OSError: there is none; a rank may have put anything in its place.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(_folder(status_file), flags)
    try:
        yield folder
    finally:
        os.close(folder)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _MOST_FILES)]


def _of_ranks(folder: int, ranks: Collection[int]) -> Mapping[int, str]:
    """Return the names of dumps by rank.

    Empty if there are dumps of other ranks: torchrun below the launcher has started more ranks, and
    they have other numbers than the launcher's.
    """
    found = {int(match[1]): match[0] for match in map(_NAME.fullmatch, _names(folder)) if match}
    return found if found.keys() <= {*ranks} else {}


def _content(folder: int, name: str, *, most: int) -> bytes:
    """Return up to `most` bytes of a recent dump; none if it is no regular file."""
    with contextlib.suppress(OSError), open_regular(name, dir_fd=folder) as file:
        if time.time() - os.fstat(file.fileno()).st_mtime <= _RECENT_SECONDS:
            return file.read(most)
    return b""
