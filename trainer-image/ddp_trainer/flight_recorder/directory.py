"""Reduces the dumps in a directory, one of each rank."""

import re
import time
from pathlib import Path
from typing import Any, Final

from ddp_trainer.flight_recorder.dump import MAX_BYTES, DumpError, reduce_dump

_RANK: Final = re.compile(r"(?:.*\D)?(\d{1,6})(?:\.(?:json|pickle|pkl))?")
"""torch ends the name with the rank: `nccl_trace_rank_12`, `comm_lib_trace_rank_12`."""
_MOST_FILES: Final = 4096
_SECONDS: Final = 300.0


class DirectoryError(Exception):
    """The directory cannot be used; the message names it and the remedy."""


def reduce_directory(directory: Path) -> dict[str, Any]:
    """Return the reduced dumps of the files with a name that ends with a rank, as plain JSON.

    Raises:
        DirectoryError: there is none, or two of one rank.
    """
    until = time.monotonic() + _SECONDS
    reduced: list[dict[str, Any]] = []
    unreadable: dict[str, str] = {}
    for rank, file in sorted(_files(directory).items()):
        if time.monotonic() > until:
            unreadable[file.name] = f"not read within {_SECONDS:g} s: give fewer files"
            continue
        try:
            with file.open("rb") as stream:
                reduced.append({"rank": rank, "trace": reduce_dump(stream.read(MAX_BYTES + 1))})
        except DumpError as error:
            unreadable[file.name] = str(error)
        except OSError as error:
            unreadable[file.name] = f"cannot be read: {error.strerror}"
    if not reduced:
        name, reason = next(iter(unreadable.items()))
        raise DirectoryError(
            f"{directory / name}: {reason}; give a directory with dumps of torch's flight recorder"
        )
    return {"ranks": reduced, "unreadable": unreadable}


def _files(directory: Path) -> dict[int, Path]:
    files: dict[int, Path] = {}
    try:
        for file in sorted(directory.iterdir()):
            match = _RANK.fullmatch(file.name)
            # A pipe or a device could block or never end.
            if not match or not file.is_file():
                continue
            rank = int(match[1])
            if rank in files:
                both = f"{files[rank].name} and {file.name}"
                raise DirectoryError(f"{directory}: {both} are both of rank {rank}; remove one")
            files[rank] = file
    except OSError as error:
        raise DirectoryError(
            f"{directory}: {error.strerror}; give the directory with the dumps"
        ) from None
    if not files or len(files) > _MOST_FILES:
        said = f"more than {_MOST_FILES} dumps" if files else "no file name ends with a rank"
        raise DirectoryError(f"{directory}: {said}; give a directory with one dump for each rank")
    return files
